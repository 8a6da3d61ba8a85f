"""The description of a run: frozen, checked, comparable, and the only thing a guarantee needs."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import pytest

from verax import (
    Batch,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    NoGuarantee,
    Phases,
    Poisson,
    Shuffle,
)

RUN = Mechanism(Poisson(rate=0.01, steps=100), noise_multiplier=1.0)


def test_defaults():
    assert RUN.clipping == Individual(norm=1.0)
    assert RUN.relation == "add-remove"
    assert Mechanism(Shuffle(10), 1.0).relation == "zero-out"
    assert Mechanism(Deterministic(10), 1.0).relation == "zero-out"


def test_it_is_a_value():
    assert Mechanism(Poisson(0.01, 100), 1.0, relation="add-remove") == RUN
    assert hash(Mechanism(Poisson(0.01, 100), 1.0)) == hash(RUN)
    assert Mechanism(Poisson(0.01, 101), 1.0) != RUN
    assert pickle.loads(pickle.dumps(RUN)) == RUN
    assert copy.deepcopy(RUN) == RUN
    with pytest.raises(dataclasses.FrozenInstanceError):
        RUN.noise_multiplier = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("noise", [-1, -1e-9, math.nan, math.inf, -math.inf, "a", None, True])
def test_bad_noise_names_itself(noise):
    with pytest.raises(ValueError, match="noise_multiplier must") as refusal:
        Mechanism(Poisson(0.1, 10), noise)
    assert repr(noise) in str(refusal.value)


@pytest.mark.parametrize("rate", [0, 1.2, math.nan, -1, "a"])
def test_bad_rates_name_themselves(rate):
    with pytest.raises(ValueError, match="rate must") as refusal:
        Mechanism(Poisson(rate=rate, steps=10), 1.0)
    assert repr(rate) in str(refusal.value)


@pytest.mark.parametrize("steps", [0, -1, 1.5, math.nan, "a"])
def test_bad_steps_name_themselves(steps):
    with pytest.raises(ValueError, match="steps must") as refusal:
        Mechanism(Poisson(rate=0.1, steps=steps), 1.0)
    assert repr(steps) in str(refusal.value)


@pytest.mark.parametrize("relation", ["addremove", "add_remove", "Replace", "zero", 3])
def test_a_mistyped_relation_names_itself_and_what_is_allowed(relation):
    with pytest.raises(
        ValueError, match="relation must be one of 'add-remove', 'zero-out', 'replace'"
    ) as refusal:
        Mechanism(Poisson(0.1, 10), 1.0, relation=relation)
    assert repr(relation) in str(refusal.value)


@pytest.mark.parametrize("sampler", [0.01, "Poisson", None, Individual()])
def test_something_else_than_a_sampler_is_refused(sampler):
    with pytest.raises(ValueError, match="sampler must be a verax sampler"):
        Mechanism(sampler, 1.0)


@pytest.mark.parametrize("clipping", [1.0, "batch", None, Batch])
def test_something_else_than_a_clipping_is_refused(clipping):
    with pytest.raises(ValueError, match="clipping must be Individual, Batch or Mixed"):
        Mechanism(Poisson(0.1, 10), 1.0, clipping)


@pytest.mark.parametrize("make", [Individual, Batch, Mixed])
@pytest.mark.parametrize("norm", [0, -1, math.nan, math.inf, "a"])
def test_bad_norms_name_themselves(make, norm):
    with pytest.raises(ValueError, match="norm must") as refusal:
        make(norm=norm)
    assert repr(norm) in str(refusal.value)


@pytest.mark.parametrize("groups", [0, -1, 1.5, math.nan, "a"])
def test_bad_clip_groups_name_themselves(groups):
    with pytest.raises(ValueError, match="groups must") as refusal:
        Mixed(groups=groups)
    assert repr(groups) in str(refusal.value)


def test_phases_flatten_and_keep_their_order():
    a, b, c = (Mechanism(Poisson(0.01, n), 1.0) for n in (1, 2, 3))
    assert (a + b) + c == a + (b + c) == Phases((a, b, c))
    assert (a + b) + (b + c) == Phases((a, b, b, c))
    assert (a + b).relation == "add-remove"


def test_phases_must_agree_on_the_relation():
    other = Mechanism(Poisson(0.01, 1), 1.0, relation="replace")
    with pytest.raises(
        NoGuarantee, match="share one neighbouring relation, got add-remove and replace"
    ):
        RUN + other
    with pytest.raises(NoGuarantee):
        (RUN + RUN) + other


def test_no_phases_are_refused():
    with pytest.raises(ValueError, match="at least one Mechanism"):
        Phases(())


def test_a_mechanism_is_a_run_of_one_phase():
    one, phases = RUN.guarantee(), Phases((RUN,)).guarantee()
    assert one.epsilon(1e-5) == phases.epsilon(1e-5)
    assert one.group == 1
    assert one.mechanism == Phases((RUN,))
