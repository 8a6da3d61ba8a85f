"""Compiles the inner loops of the noise when verax is installed or a wheel is built.

Without a compiler verax does the same with numpy, in the time that ``benchmarks/noise.py`` shows as
pure.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

SOURCE = "verax/randomness/_kernel.c"
ENDINGS = (".so", ".pyd")
# whatever CFLAGS say
EXACT = ("-O3", "-ffp-contract=off", "-fno-fast-math", "-fno-associative-math")
ABI = "0x030B0000"  # the stable interface of Python 3.11: one build for it and all that come after


class Kernel(BuildHookInterface[Any]):
    """Puts the compiled module beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; if that fails, say so and go on without."""
        try:
            for old in (Path(self.root) / SOURCE).parent.glob("_kernel*"):
                if old.suffix in ENDINGS:
                    old.unlink()
            if os.environ.get("VERAX_PURE") or sys.implementation.name != "cpython":
                return
            compiled(Path(self.root))
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a compiler may lack
            self.app.display_warning(
                f"no compiled noise, numpy does it instead ({type(error).__name__}: {error})"
            )
            return
        build_data["artifacts"] += [SOURCE.replace(".c", f"*{ending}") for ending in ENDINGS]
        build_data["pure_python"] = False
        own = next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
        build_data["tag"] = f"cp311-abi3-{own}"


def compiled(root: Path) -> None:
    """By setuptools, which knows the compilers of all platforms."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    flags = ["/fp:precise"] if sys.platform == "win32" else list(EXACT)
    module = Extension(
        "verax.randomness._kernel",
        [SOURCE],
        extra_compile_args=flags,
        define_macros=[("Py_LIMITED_API", ABI)],
        py_limited_api=True,
    )
    before = Path.cwd()
    os.chdir(root)
    try:
        command = build_ext(
            Distribution(
                {"name": "verax", "ext_modules": [module], "packages": ["verax.randomness"]}
            )
        )
        command.inplace, command.build_lib, command.build_temp = (
            True,
            "build/kernel",
            "build/kernel",
        )
        command.force = True
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
