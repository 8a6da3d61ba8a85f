"""Entries of a ledger: damage and forgery are noticed, and every round has its clip norm."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax import Mechanism, Poisson
from verax.ledger import DamagedLedger, Ledger, LedgerError, LeftMechanism, entries
from verax.ledger.ledger import read

RUN = Mechanism(Poisson(0.01, 8), 1.5)
pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.mark.parametrize("end", ["", "finished", "private"])
def test_any_flipped_bit_is_noticed(path, end, contents):
    whole = contents(path, end)
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            with pytest.raises(LedgerError):
                entries.parse(bytes(flipped).splitlines(keepends=True), "run.ledger")


@pytest.fixture(scope="module")
def lines(tmp_path_factory, contents):
    return contents(tmp_path_factory.mktemp("whole") / "run.ledger", "stopped").splitlines(
        keepends=True
    )


def refused(lines, head=None):
    with pytest.raises(LedgerError):
        entries.parse(lines, "run.ledger", head)
    return True


@given(st.data())
def test_any_changed_byte_is_noticed(lines, data):
    whole = bytearray(b"".join(lines))
    place = data.draw(st.integers(0, len(whole) - 1))
    # a zero there is what a power cut leaves, and counts as a torn line
    last = place == len(whole) - 1
    whole[place] = data.draw(st.integers(last, 255).filter(lambda byte: byte != whole[place]))
    assert refused(bytes(whole).splitlines(keepends=True))


@given(st.data())
def test_moved_removed_and_doubled_lines_are_noticed(lines, data):
    place = data.draw(st.integers(0, len(lines) - 1))
    other = data.draw(st.integers(0, len(lines) - 1))
    swapped = [*lines]
    swapped[place], swapped[other] = swapped[other], swapped[place]
    assert place == other or refused(swapped)
    assert refused([*lines[: other + 1], lines[place], *lines[other + 1 :]])
    if place < len(lines) - 1:
        assert refused([*lines[:place], *lines[place + 1 :]])


def rechained(lines, start=0):
    """The lines with hashes recomputed from ``start`` on, as a forger would."""
    previous = "0" * 64 if start == 0 else lines[start - 1][-67:-3].decode()
    done = lines[:start]
    for line in lines[start:]:
        body = line.rsplit(b',"hash":"', 1)[0]
        previous = hashlib.sha256(previous.encode() + body).hexdigest()
        done.append(body + b',"hash":"' + previous.encode() + b'"}\n')
    return done


def test_the_forger_of_these_tests_knows_the_format(lines):
    assert rechained(lines) == lines


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        (0, b'"steps":8', b'"steps":80'),
        (0, b'"noise_multiplier":1.5', b'"noise_multiplier":9.5'),
        (0, b'"insecure_seed":false', b'"insecure_seed":true'),
        (1, b'"round":0', b'"round":1'),
        (3, b'"event":"resumed"', b'"event":"resumes"'),
    ],
)
def test_an_edited_line_is_noticed(lines, number, old, new):
    edited = [*lines]
    edited[number] = edited[number].replace(old, new)
    assert edited != lines
    assert refused(edited)
    alone = rechained(edited[: number + 1], number) + edited[number + 1 :]
    assert refused(alone)  # with a hash that fits, the next line's does not


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b'"steps":8', b'"steps":3', "round 3 where none is due"),
        (b'"round":1', b'"round":2', "round 2 where 1 is due"),
        (
            b'"event":"resumed","released":2',
            b'"event":"resumed","released":1',
            "not say what a ledger would say",
        ),
        (
            b'"event":"resumed","released":2',
            b'"event":"resumed","released":2,"loss":1',
            "not say what a ledger would",
        ),
        (b'"event":"resumed"', b'"event":"paused"', "unknown event"),
        (b'"private":false', b'"private":0', "unknown event"),
        (b'{"round":1', b'{"rounds":1', "unknown event"),
        (b'{"round":1', b'{"round": 1', "round 1 where 1 is due"),
        (b'"event":"resumed"', b'"event":"finished"', "nothing may follow"),
        (b'"rate":0.01', b'"rate":0.010', "was edited"),
        (b'"rate":0.01', b'"rate":2', "rate must lie in"),
        (b'"kind":"Poisson"', b'"kind":"Poison"', "sampler must be one of"),
        (b'"population":null', b'"population":0', "population must be"),
        (b'"population":null', b'"population":null,"seed":1', "exactly the fields"),
    ],
)
def test_what_a_ledger_would_never_say_is_noticed_even_if_every_hash_fits(lines, old, new, what):
    forged = rechained([line.replace(old, new) for line in lines])
    assert forged != lines
    with pytest.raises(DamagedLedger, match=what):
        entries.parse(forged, "run.ledger")


def test_a_head_kept_elsewhere_notices_what_the_file_alone_cannot(path, lines):
    path.write_bytes(b"".join(lines))
    whole = read(path)
    for kept in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        shorter = read(path)  # nothing wrong with it by itself
        with pytest.raises(DamagedLedger, match="cut off or rewritten after it was noted"):
            read(path, head=whole.head)
        path.write_bytes(b"".join(lines))
        assert read(path, head=shorter.head) == whole  # it has grown since
    path.write_bytes(b"".join(rechained([line.replace(b"1.5", b"9.5") for line in lines])))
    assert read(path).mechanism.mechanisms[0].noise_multiplier == 9.5
    with pytest.raises(DamagedLedger, match="rewritten"):
        read(path, head=whole.head)
    for head in ("", "abc", "g" * 64, 3):
        with pytest.raises(ValueError, match="head must be a hash of 64 hexadecimal digits"):
            read(path, head=head)


@pytest.mark.parametrize(
    "content", [b"hello\n", b"{}\n", b"\0" * 100 + b"\n", b'[1,2]\n{"a":1}\n', b"[" * 10**5]
)
def test_other_files_are_not_ledgers(path, content):
    path.write_bytes(content)
    for use in (read, Ledger.open):
        with pytest.raises(
            DamagedLedger, match=r"run\.ledger, line 1: the file is not a verax ledger"
        ):
            use(path)
    assert path.read_bytes() == content


def test_a_later_format_is_not_guessed_at(path, written):
    written(path, 1)
    path.write_bytes(path.read_bytes().replace(b'"verax_ledger":1', b'"verax_ledger":4'))
    with pytest.raises(
        LedgerError, match="a ledger of format 4, and this verax knows formats 1 to 3"
    ):
        read(path)


# A clip norm for every round

NORMS = [2.0, 2.0, 2.0, 0.5, 0.25, 0.25, 1e-3, 1.0]


def scheduled(path, rounds=8):
    with Ledger.create(path, RUN, clip_norms=NORMS) as book:
        for number in range(rounds):
            book.release(number, clip_norm=NORMS[number], noise_multiplier=1.5)
    return path


def test_declared_clip_norms_are_kept_and_written_with_every_round(path):
    scheduled(path)
    header, *rounds = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert header["verax_ledger"] == 2
    assert header["clip_norms"] == [[2.0, 3], [0.5, 1], [0.25, 2], [1e-3, 1], [1.0, 1]]
    assert [entry["clip_norm"] for entry in rounds] == NORMS
    run = read(path)
    assert run.complete
    assert run.clip_norms == tuple((norm, times) for norm, times in header["clip_norms"])
    assert "round by round, 0.001 to 2" in run.account()
    assert run.guarantee().epsilon(1e-5) == RUN.guarantee().epsilon(1e-5)
    with Ledger.open(scheduled(path.with_name("other"), 3), RUN) as book:
        book.release(3, clip_norm=0.5, noise_multiplier=1.5)
        assert book.clip_norms == run.clip_norms
        assert not book.insecure_seed


def test_another_norm_than_the_rounds_own_leaves_the_mechanism(path):
    with (
        Ledger.open(scheduled(path, 3), RUN) as book,
        pytest.raises(LeftMechanism, match=r"2\.0, declared is 0\.5"),
    ):
        book.release(3, clip_norm=2.0, noise_multiplier=1.5)
    assert read(path).released == 3


def test_clip_norms_are_for_all_rounds(path):
    for norms, words in (
        (NORMS[:3], "8 rounds, got 3"),
        ([0.0, *NORMS[1:]], "round 0 must be positive"),
    ):
        with pytest.raises(ValueError, match=words):
            Ledger.create(path, RUN, clip_norms=norms)
    assert not path.exists()


def test_a_scheduled_ledger_cut_after_any_byte_still_counts_its_rounds(path):
    whole = scheduled(path, 5).read_bytes()
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[0] + 1, len(whole)):
        path.write_bytes(whole[:cut])
        begun = sum(end + 1 < cut for end in ends[:-1])
        assert read(path).released == begun
    path.write_bytes(whole[: ends[3] + 20])
    Ledger.open(path, RUN).close()
    assert read(path).released == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"clip_norms":[[2.0,3]', b'"clip_norms":[[2.0,2]'),
        (b'"clip_norms":[[2.0,3]', b'"clip_norms":[[-2.0,3]'),
        (b'"clip_norms":[[2.0,3]', b'"clip_norms":[3'),
        (b'"verax_ledger":2', b'"verax_ledger":1'),
        (b'"round":3,"clip_norm":0.5', b'"round":3,"clip_norm":5.0'),
        (b'"round":3,"clip_norm":0.5', b'"round":3'),
    ],
)
def test_edited_clip_norms_are_noticed_even_if_every_hash_fits(path, old, new):
    content = scheduled(path, 5).read_bytes()
    assert old in content
    path.write_bytes(b"".join(rechained(content.replace(old, new).splitlines(keepends=True))))
    with pytest.raises(DamagedLedger):
        read(path)


# Who is protected


@pytest.mark.parametrize("norms", [None, NORMS])
def test_a_ledger_of_clients_says_so(path, norms):
    with Ledger.create(path, RUN, unit="client", clip_norms=norms) as book:
        assert book.unit == "client"
        book.release(0, clip_norm=1.0 if norms is None else 2.0, noise_multiplier=1.5)
    header = json.loads(path.read_bytes().splitlines()[0])
    assert (header["verax_ledger"], header["unit"]) == (3, "client")
    assert (header["clip_norms"] is None) == (norms is None)
    with Ledger.open(path, RUN) as book:
        assert book.unit == "client"
    assert read(path).unit == "client"
    assert read(path).guarantee().unit == "client"


def test_ledgers_of_records_are_written_as_before(path, written):
    assert written(path, 1, unit="record").read_bytes().startswith(b'{"verax_ledger":1,')
    assert read(path).unit == "record"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"unit":"client"', b'"unit":"record"'),
        (b'"unit":"client"', b'"unit":"planet"'),
        (b'"unit":"client"', b'"unit":["client"]'),
        (b',"unit":"client"', b""),
        (b'"verax_ledger":3', b'"verax_ledger":2'),
    ],
)
def test_an_edited_unit_is_noticed_even_if_every_hash_fits(path, written, old, new):
    content = written(path, 1, unit="client").read_bytes()
    assert old in content
    path.write_bytes(b"".join(rechained(content.replace(old, new).splitlines(keepends=True))))
    with pytest.raises(DamagedLedger):
        read(path)


def test_an_unknown_unit_is_refused(path):
    with pytest.raises(ValueError, match="unit must be one of 'record', 'client', got 'household'"):
        Ledger.create(path, RUN, unit="household")
    assert not path.exists()
