"""The file of a ledger: other writers, what is no file, and what a power cut leaves."""

from __future__ import annotations

import os

import pytest

from verax import Mechanism, Poisson
from verax.ledger import DamagedLedger, Ledger, LedgerError, RunOver
from verax.ledger.ledger import read

RUN = Mechanism(Poisson(0.01, 8), 1.5)
pytestmark = pytest.mark.usefixtures("no_waiting")


# Replaced


def moved_away_and_copied_back(path):
    content = path.read_bytes()
    path.rename(path.with_name("away"))
    path.write_bytes(content)


def replaced_by_a_copy_while_a_hard_link_keeps_it(path):
    os.link(path, path.with_name("link"))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def kept_under_another_name_only(path):
    os.link(path, path.with_name("link"))
    path.unlink()


def in_a_directory_that_was_swapped(path):
    content = path.read_bytes()
    path.parent.rename(path.parent.with_name("away"))
    path.parent.mkdir()
    path.write_bytes(content)


def behind_a_link_that_was_turned(path):
    content = path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(content)
    path.unlink()
    path.symlink_to(other)


def edited_in_place(path):
    content = path.read_bytes().replace(b'"round":0', b'"round":7')
    with path.open("r+b") as other:
        other.write(content)
    os.utime(path, ns=(1, 1))  # a clock that is too coarse would not show it


ELSEWHERE = [
    moved_away_and_copied_back,
    replaced_by_a_copy_while_a_hard_link_keeps_it,
    kept_under_another_name_only,
    in_a_directory_that_was_swapped,
    behind_a_link_that_was_turned,
    edited_in_place,
]


@pytest.mark.parametrize("change", ELSEWHERE)
def test_a_ledger_that_is_replaced_while_it_is_written_stops_the_run(tmp_path, change, go_on):
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "run.ledger"
    with Ledger.create(path, RUN) as book:
        go_on(book, 2)
        change(path)
        with pytest.raises(DamagedLedger, match="round 2 must not be released"):
            go_on(book, 1)
        with pytest.raises(LedgerError, match="an earlier write failed"):
            go_on(book, 1)


@pytest.mark.parametrize("change", ELSEWHERE[:5])
def test_a_ledger_that_is_replaced_during_the_write_itself_stops_the_run(
    tmp_path, change, go_on, monkeypatch
):
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "run.ledger"
    with Ledger.create(path, RUN) as book:
        go_on(book, 2)
        monkeypatch.setattr(os, "fsync", lambda fd: change(path))
        with pytest.raises(DamagedLedger, match="round 2 must not be released"):
            go_on(book, 1)


def test_a_ledger_that_was_only_touched_linked_or_left_for_another_folder_goes_on(
    path, go_on, monkeypatch
):
    monkeypatch.chdir(path.parent)
    with Ledger.create(path.name, RUN) as book:
        go_on(book, 2)
        os.utime(path, ns=(1, 1))
        os.link(path, path.with_name("backup"))
        monkeypatch.chdir("/")
        go_on(book, 2)
    assert read(path).released == 4


def test_what_is_no_file_is_no_ledger(tmp_path, written):
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/full", "/dev/zero", tmp_path / "pipe"):
        for use in (lambda name: Ledger.create(name, RUN), Ledger.open):
            with pytest.raises(
                LedgerError, match=r"path must be a file, got .* a device, a pipe or a socket"
            ):
                use(name)
    for name in ("/dev/full", "/dev/zero"):
        with pytest.raises(ValueError, match=r"path must be a file, got .*, which is a device"):
            read(name)


# Power cuts


@pytest.mark.parametrize("end", ["", "finished", "stopped", "private"])
def test_zeros_that_a_power_cut_left_count_as_the_round_that_was_being_written(
    path, end, go_on, contents
):
    whole = contents(path, end)
    lines = whole.splitlines(keepends=True)
    before = b"".join(lines[:-1])
    for cut in range(len(before), len(whole)):
        lost = len(whole) - cut
        path.write_bytes(whole[:cut] + bytes(lost))
        run = read(path)
        assert run.torn
        assert run.released >= whole[:cut].count(b'{"round"')
        if cut == len(before):  # nothing of the line is left: as many rounds as have room in it
            assert run.released == before.count(b'{"round"') + -(-len(lines[-1]) // len(lines[1]))
        if run.ended is None:
            with Ledger.open(path) as book:
                assert book.released == run.released
                go_on(book, 1)
            after = read(path)
            assert (after.released, after.torn) == (run.released + 1, False)
            assert path.read_bytes().startswith(whole[:cut])
        else:
            with pytest.raises(RunOver):
                Ledger.open(path)


def test_zeros_in_place_of_several_rounds_are_charged_as_all_of_them(path, written, go_on):
    lines = written(path, 6).read_bytes().splitlines(keepends=True)
    # a disk that had not written what it said
    path.write_bytes(b"".join(lines[:3]) + bytes(sum(map(len, lines[3:]))))
    assert read(path).released == 6
    with Ledger.open(path) as book:
        go_on(book, 2)
    assert read(path).complete
    path.write_bytes(b"".join(lines[:3]) + bytes(10_000))  # more than the whole run has
    assert read(path).released == 8


def test_a_power_cut_while_zeros_are_made_good_is_made_good_too(path, written, go_on):
    lines = written(path, 6).read_bytes().splitlines(keepends=True)
    torn = b"".join(lines[:3]) + bytes(sum(map(len, lines[3:])))
    path.write_bytes(torn)
    Ledger.open(path).close()
    whole = path.read_bytes()
    for cut in range(len(b"".join(lines[:3])), len(torn)):
        path.write_bytes(whole[:cut] + bytes(len(torn) - cut))
        with Ledger.open(path) as book:
            assert book.released >= 6


def test_zeros_while_creating_can_be_made_good(path, written):
    whole = written(path, 0).read_bytes()
    for cut in (0, 5, 40, len(whole) - 1):
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        with pytest.raises(DamagedLedger, match=r"before anything was released\. Create it again"):
            read(path)
        written(path, 1)
        assert read(path).released == 1


def test_zeros_elsewhere_are_damage(path, written):
    lines = written(path, 3, finish=True).read_bytes().splitlines(keepends=True)
    for content in (
        b"".join([*lines[:2], bytes(len(lines[2])), *lines[3:]]),
        b"".join(lines) + bytes(20),  # nothing is written after the end
        b"".join(lines[:2]) + bytes(2**20 + 1),
    ):
        path.write_bytes(content)
        with pytest.raises(DamagedLedger, match=r"line \d:"):
            read(path)
    with path.open("r+b") as file:
        file.truncate(2**34)  # no disk is used for it, and no memory must be
    with pytest.raises(DamagedLedger, match="more than 1048576 bytes"):
        read(path)
