"""The ledger: never behind what was released; departures and other writers are noticed."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from verax import (
    Batch,
    Mechanism,
    Phases,
    Poisson,
    Shuffle,
)
from verax.ledger import (
    DamagedLedger,
    Ledger,
    LedgerBusy,
    LedgerError,
    LeftMechanism,
    RunOver,
)
from verax.ledger.entries import Log
from verax.ledger.ledger import read

RUN = Mechanism(Poisson(0.01, 8), 1.5)
CRASH = Path(__file__).with_name("crash_ledger.py")
pytestmark = pytest.mark.usefixtures("no_waiting")


def python(code, *words, **more):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, text=True, **more
    )


# What is written


def test_the_format_is_as_documented(path, written):
    written(path, 2, finish=True, population=100)
    previous = "0" * 64
    lines = path.read_bytes().splitlines()
    for line in lines:
        body, digest = line[:-2].split(b',"hash":"')
        assert hashlib.sha256(previous.encode() + body).hexdigest() == digest.decode()
        previous = digest.decode()
    header, *rest = [json.loads(line) for line in lines]
    assert header.pop("verax_ledger") == 1
    assert set(header) == {
        "verax",
        "run",
        "time",
        "insecure_seed",
        "population",
        "mechanism",
        "hash",
    }
    assert [set(entry) - {"hash"} for entry in rest] == [
        {"round"},
        {"round"},
        {"event", "released"},
    ]
    assert read(path).head == previous


def test_a_run_reads_back(path, written):
    both = Mechanism(Poisson(0.1, 2), 2.0) + Mechanism(Shuffle(3), 1.0, Batch(0.5), "add-remove")
    written(path, 5, both, finish=True, population=12, insecure_seed=True)
    run = read(path)
    assert run.mechanism == both
    assert (run.released, run.declared, run.complete, run.torn) == (5, 5, True, False)
    assert (run.population, run.insecure_seed, run.ended.kind) == (12, True, "finished")


def test_a_round_is_on_disk_before_release_returns(path, monkeypatch, go_on):
    calls = []
    write, sync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, line: calls.append("write") or write(fd, line))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("sync") or sync(fd))
    with Ledger.create(path, RUN) as book:
        assert calls == ["write", "sync", "sync"]  # the line, and the name in its directory
        calls.clear()
        go_on(book, 1)
        assert calls == ["write", "sync"]


def test_nothing_varies_with_the_data_or_the_clock(path, tmp_path, written):
    """Entries after the first say what mechanism and events fix: no times, no sizes."""
    other = tmp_path / "other.ledger"
    written(path, 5)
    time.sleep(0.01)
    written(other, 5)
    plain = [
        [line.split(b',"hash"')[0] for line in p.read_bytes().splitlines()[1:]]
        for p in (path, other)
    ]
    assert plain[0] == plain[1]


def test_resuming_goes_on_with_the_next_round(path, written, go_on):
    written(path, 3)
    with Ledger.open(path, RUN) as book:
        assert book.released == 3
        go_on(book, 5)
        book.finish()
    run = read(path)
    assert run.complete
    assert [(event.kind, event.released) for event in run.events] == [
        ("resumed", 3),
        ("finished", 8),
    ]


# Leaving the mechanism


@pytest.mark.parametrize(
    ("number", "norm", "noise", "words"),
    [
        (2, 1.0, 1.5, "round 2 was already released; the next is 3"),
        (0, 1.0, 1.5, "round 0 was already released"),
        (4, 1.0, 1.5, "rounds 3 to 3 were skipped; a round with an empty batch is released too"),
        (8, 1.0, 1.5, "round 8 is beyond the 8 declared rounds"),
        (3, 1.0, 1.4, "round 3 has a noise multiplier of 1.4, declared is 1.5"),
        (3, 1.0, 1.6, "noise multiplier of 1.6"),
        (3, 1.0, float("nan"), "noise multiplier of nan"),
        (3, 0.9, 1.5, "round 3 has a clip norm of 0.9, declared is 1.0"),
    ],
)
def test_a_run_that_leaves_its_mechanism_stops_and_the_ledger_says_so(
    path, number, norm, noise, words, written
):
    written(path, 3)
    with Ledger.open(path) as book:
        with pytest.raises(LeftMechanism, match=words) as error:
            book.release(number, clip_norm=norm, noise_multiplier=noise)
        assert str(path) in str(error.value)
        with pytest.raises(RunOver, match="stopped after 3 rounds"):
            book.release(3, clip_norm=1.0, noise_multiplier=1.5)
    run = read(path)
    assert run.released == 3
    assert run.ended.kind == "stopped"
    assert words in run.ended.reason
    with pytest.raises(RunOver, match="report both together"):
        Ledger.open(path)


def test_more_rounds_than_declared(path, go_on):
    with Ledger.create(path, RUN) as book:
        go_on(book, 8)
        with pytest.raises(LeftMechanism, match="beyond the 8 declared"):
            go_on(book, 1)
    assert read(path).complete


def test_every_phase_has_its_own_noise_and_norm(path, go_on):
    both = Mechanism(Poisson(0.1, 2), 2.0) + Mechanism(Poisson(0.1, 2), 1.0, Batch(0.5))
    with Ledger.create(path, both) as book:
        go_on(book, 2)
        with pytest.raises(LeftMechanism, match="clip norm"):
            book.release(2, clip_norm=1.0, noise_multiplier=2.0)


def test_the_trainer_can_stop_the_run(path):
    with Ledger.create(path, RUN) as book:
        error = book.left('gradients "not finite" \\ in\nround 0 é', private=True)
        assert isinstance(error, LeftMechanism)
    ended = read(path).ended
    assert ended.reason == "gradients 'not finite' / in round 0 ?"
    assert ended.private


def test_a_reason_must_say_something(path):
    with Ledger.create(path, RUN) as book:
        with pytest.raises(ValueError, match="reason must say something"):
            book.stop(" \n")
        book.stop("x" * 10_000)
    assert len(read(path).ended.reason) == 500


@pytest.mark.parametrize("number", [-1, 1.5, "0", None, True])
def test_a_round_is_a_number(path, number):
    with Ledger.create(path, RUN) as book, pytest.raises(ValueError, match="round must be"):
        book.release(number, clip_norm=1.0, noise_multiplier=1.5)
    assert read(path).ended is None


def test_a_run_is_resumed_as_what_it_is(path, written):
    written(path, 3)
    before = path.read_bytes()
    for other in (Mechanism(Poisson(0.01, 9), 1.5), Mechanism(Poisson(0.01, 8), 1.4), RUN + RUN):
        with pytest.raises(
            LeftMechanism, match=r"declares Mechanism.*resume with what was declared"
        ):
            Ledger.open(path, other)
    assert path.read_bytes() == before
    Ledger.open(path, Phases((RUN,))).close()


# Crashes


@pytest.mark.parametrize(("how", "least"), [("kill", 220), ("instructions", 1)])
def test_a_crash_never_makes_the_ledger_forget(tmp_path, how, least):
    done = subprocess.run(
        [sys.executable, str(CRASH), how, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert int(done.stdout.split()[0]) >= least  # a busy machine needs more until a run ends


@pytest.mark.parametrize("end", ["", "finished", "stopped", "private"])
def test_a_ledger_cut_anywhere_counts_the_round_it_was_writing(path, end, go_on, contents):
    whole = contents(path, end)
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        rounds = whole[:cut].count(b'{"round"') + whole[:cut].endswith((b"\n{", b'\n{"'))
        for part in (b'{"r', b'{"ro', b'{"rou', b'{"roun', b'{"round'):
            rounds += whole[:cut].endswith(b"\n" + part)
        run = read(path)
        assert run.released == rounds
        assert run.torn == (whole[cut - 1 : cut] != b"\n")
        before = path.read_bytes()
        if run.ended is None:
            with Ledger.open(path) as book:
                go_on(book, 1)
            after = read(path)
            assert (after.released, after.torn) == (rounds + 1, False)
            assert path.read_bytes().startswith(before)  # it only ever grows
        elif run.ended.reason:
            assert "clip norm was changed".startswith(
                run.ended.reason.split(" [cut")[0].split("cut short")[0]
            )
            assert run.ended.private or end == "stopped"


def test_a_crash_while_creating_can_be_made_good(path, written):
    whole = written(path, 0).read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        for use in (read, Ledger.open):
            with pytest.raises(
                DamagedLedger, match=r"before anything was released\. Create it again"
            ):
                use(path)
        if cut % 50 == 0:
            written(path, 1)
            assert read(path).released == 1


def test_a_torn_line_elsewhere_is_damage(path, contents):
    whole = contents(path, "").splitlines(keepends=True)
    for number in range(len(whole) - 1):
        torn = [*whole]
        torn[number] = torn[number][:-20] + b"\n"
        path.write_bytes(b"".join(torn))
        with pytest.raises(LedgerError, match=f"line {number + 1}:"):
            read(path)


# Writers


HOLD = """
import signal, sys
from verax.ledger import Ledger
book = Ledger.open(sys.argv[1])
print("open", flush=True)
signal.pause()
"""


def test_two_processes_cannot_write_one_ledger(path, written, go_on):
    written(path, 2)
    first = python(HOLD, path)
    assert first.stdout.readline() == "open\n"
    for use in (lambda: Ledger.open(path), lambda: Ledger.create(path, RUN)):
        with pytest.raises(LedgerBusy, match=f"{path} is being written by this or another process"):
            use()
    assert read(path).released == 2  # reading is for everybody
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with Ledger.open(path) as book:
        go_on(book, 1)


def test_two_objects_cannot_write_one_ledger(path, go_on):
    with Ledger.create(path, RUN) as book:
        with pytest.raises(LedgerBusy):
            Ledger.open(path)
        go_on(book, 1)
        read(path)
        with pytest.raises(LedgerBusy):
            Ledger.open(path)


def test_a_forgotten_ledger_is_let_go(path):
    book = Ledger.create(path, RUN)
    del book
    Ledger.open(path).close()


FORK = """
import os, signal, sys
from verax.ledger import Ledger
book = Ledger.open(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        book.release(book.released, clip_norm=1.0, noise_multiplier=1.5)
    except ValueError as error:
        os.write(1, f"{error}\\n".encode())  # both write to one pipe, so each line is one write
    signal.pause()
os.write(1, f"{child}\\n".encode())
signal.pause()
"""


def test_a_fork_cannot_write_and_does_not_keep_the_lock(path, written):
    """Such as the workers of a data loader, which outlive a killed trainer for a while."""
    written(path, 2)
    parent = python(FORK, path)
    refusal, child = sorted(
        [parent.stdout.readline(), parent.stdout.readline()], key=len, reverse=True
    )
    child = int(child)
    try:
        assert "belongs to the process that opened it" in refusal
        with pytest.raises(LedgerBusy):
            Ledger.open(path)
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # still there
        Ledger.open(path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
    assert read(path).released == 2


def test_a_ledger_cannot_be_copied_or_sent(path):
    with Ledger.create(path, RUN) as book:
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="belongs to the process"):
                use(book)


def both(first, second):
    """Call both in threads of their own and return what each of them returned or raised."""
    results = {}

    def run(name, call):
        try:
            results[name] = call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            results[name] = error

    threads = [
        threading.Thread(target=run, args=each) for each in (("first", first), ("second", second))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results["first"], results["second"]


def test_two_threads_cannot_both_release_a_round(path, monkeypatch):
    """Each waits until the other has seen, too, that the round is due, or cannot."""
    seen = threading.Barrier(2)
    round_line = Log.round_line

    def slow(log):
        with suppress(threading.BrokenBarrierError):
            seen.wait(0.3)
        return round_line(log)

    with Ledger.create(path, RUN) as book:
        monkeypatch.setattr(Log, "round_line", slow)
        found = both(*[lambda: book.release(0, clip_norm=1.0, noise_multiplier=1.5)] * 2)
        monkeypatch.undo()
    refused = [error for error in found if error is not None]
    assert len(refused) == 1
    assert "round 0 was already released" in str(refused[0])
    assert read(path).released == 1


def test_a_ledger_is_not_closed_while_another_thread_writes(path, monkeypatch):
    """Its descriptor could by then belong to another file."""
    writing, closed = threading.Event(), threading.Event()
    write = os.write

    def slow(fd, line):
        writing.set()
        closed.wait(0.3)
        return write(fd, line)

    def close():
        writing.wait()
        book.close()
        closed.set()

    book = Ledger.create(path, RUN)
    monkeypatch.setattr(os, "write", slow)
    assert both(lambda: book.release(0, clip_norm=1.0, noise_multiplier=1.5), close) == (None, None)
    assert read(path).released == 1


def test_a_signal_handler_cannot_write_in_the_middle_of_an_entry(path, monkeypatch, go_on):
    with Ledger.create(path, RUN) as book:
        go_on(book, 1)
        round_line = Log.round_line

        def interrupted(log):
            line = round_line(log)
            book.stop("a signal came")
            return line

        with monkeypatch.context() as patch:
            patch.setattr(Log, "round_line", interrupted)
            with pytest.raises(LedgerBusy, match="in the middle of another entry"):
                book.release(1, clip_norm=1.0, noise_multiplier=1.5)
        go_on(book, 1)
    assert read(path).released == 2


THREADS = """
import os, sys, threading
from verax.ledger import Ledger
book = Ledger.open(sys.argv[1])
held, go = threading.Event(), threading.Event()
def hold():
    with book._lock:
        held.set()
        go.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    try:
        book.release(book.released, clip_norm=1.0, noise_multiplier=1.5)
    except ValueError as error:
        os.write(1, f"{error}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
go.set()
"""


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have(path, written):
    written(path, 2)
    with python(THREADS, path) as parent:
        assert "belongs to the process that opened it" in parent.stdout.readline()


def test_a_closed_ledger_does_not_write(path, go_on):
    with Ledger.create(path, RUN) as book:
        pass
    with pytest.raises(LedgerError, match="it was closed; round 0 must not be released"):
        go_on(book, 1)
    assert read(path).released == 0


# Disks


def test_a_full_disk_releases_nothing(path, go_on):
    """The file may not grow by more than a part of a line."""
    with Ledger.create(path, RUN) as book:
        go_on(book, 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, hard))
        try:
            with pytest.raises(
                OSError, match=r"round 2 must not be released: .* cannot be written"
            ) as error:
                go_on(book, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert error.value.errno == errno.EFBIG
        assert error.value.filename == str(path)
        # it would follow a part of a line
        with pytest.raises(LedgerError, match="an earlier write failed"):
            go_on(book, 1)
    assert (read(path).released, read(path).torn) == (3, True)
    with Ledger.open(path) as book:
        assert book.released == 3  # spent, to be on the safe side
        go_on(book, 5)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_write_that_fails_releases_nothing(path, monkeypatch, call, go_on):
    with Ledger.create(path, RUN) as book:
        go_on(book, 1)

        def fail(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(OSError, match=r"round 1 must not be released.*No space left"):
                go_on(book, 1)
            with pytest.raises(OSError, match=r"cannot be created \(No space left"):
                Ledger.create(path.with_name("other"), RUN)
    with Ledger.open(path) as book:
        assert book.released == (1 if call == "write" else 2)


def test_leaving_is_an_error_even_if_it_cannot_be_written(path, monkeypatch):
    with Ledger.create(path, RUN) as book:
        monkeypatch.setattr(
            os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))
        )
        with pytest.raises(LeftMechanism, match=r"rounds 0 to 0 .*could not be told.*Input/output"):
            book.release(1, clip_norm=1.0, noise_multiplier=1.5)


def test_an_interrupt_in_the_middle_closes_the_ledger(path, monkeypatch, go_on):
    def interrupt(_):
        raise KeyboardInterrupt

    with Ledger.create(path, RUN) as book:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                go_on(book, 1)
        with pytest.raises(LedgerError, match="an earlier write failed or was interrupted"):
            go_on(book, 1)
    with Ledger.open(path) as book:
        assert book.released == 1


def test_a_ledger_that_vanishes_is_noticed(path, go_on):
    with Ledger.create(path, RUN) as book:
        path.unlink()
        with pytest.raises(
            DamagedLedger, match=r"deleted, moved or replaced .* round 0 must not be released"
        ):
            go_on(book, 1)


def test_a_ledger_that_someone_else_writes_is_noticed(path, go_on):
    with Ledger.create(path, RUN) as book:
        with path.open("ab") as other:
            other.write(b"\n")
        with pytest.raises(
            DamagedLedger, match=r"someone else changed the file; round 0 must not be released"
        ):
            go_on(book, 1)


def test_bad_paths_are_named(path, tmp_path):
    with pytest.raises(
        LedgerError, match=r"in an existing directory that can be written, got .*nowhere"
    ):
        Ledger.create(tmp_path / "nowhere" / "run.ledger", RUN)
    with pytest.raises(
        LedgerError, match=r"an existing ledger .* got .*run\.ledger.*: No such file"
    ):
        Ledger.open(path)
    with pytest.raises(
        LedgerError, match=r"a ledger that can be read, got .*run\.ledger.*: No such file"
    ):
        read(path)
    with pytest.raises(LedgerError, match="Is a directory"):
        read(tmp_path)
    with pytest.raises(LedgerError, match="Is a directory"):
        Ledger.open(tmp_path)
    assert not path.exists()


def test_a_read_only_file_is_named(path, monkeypatch, written):
    written(path, 1)
    path.chmod(0o444)
    if os.geteuid() == 0:  # whom the mode does not stop

        def refuse(*_):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        LedgerError, match=r"that can be written, got .*run\.ledger.*: Permission denied"
    ):
        Ledger.open(path)
    monkeypatch.undo()
    assert read(path).released == 1


def test_a_ledger_is_never_overwritten(path, written):
    whole = written(path, 1).read_bytes()
    with pytest.raises(LedgerError, match=r"path must be new, got .* which exists.*give the state"):
        Ledger.create(path, RUN)
    assert path.read_bytes() == whole
    for text in (b"mine", b"mine\n", b'{"verax_ledger":9}\n', b'{"verax'[:-1] + b"X"):
        path.write_bytes(text)
        with pytest.raises(LedgerError, match="path must be new"):
            Ledger.create(path, RUN)
        assert path.read_bytes() == text


def test_nonsense_is_not_a_mechanism(path):
    with pytest.raises(ValueError, match="mechanism must be a Mechanism or Phases, got 3"):
        Ledger.create(path, 3)
    with pytest.raises(ValueError, match="population must be"):
        Ledger.create(path, RUN, population=0)
    assert not path.exists()
