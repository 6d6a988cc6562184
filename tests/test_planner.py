"""The planner's order, memory and placement, against slow accounts of the same things."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from karma_fx.planner.links import Links
from karma_fx.planner.memory import liveness
from karma_fx.planner.place import Placement, place
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence, legal_saved, make_sequence
from karma_fx.strategies.decision import Decision, can_offload, evaluate
from tests.problems import any_saved, random_problem

seeds = st.integers(0, 10**6)
sizes = st.integers(2, 12)


def sequence_for(problem: Problem, seed: int) -> Sequence:
    return make_sequence(problem, legal_saved(problem, any_saved(problem, seed)))


@given(seeds, seeds, sizes)
@settings(max_examples=150)
def test_every_operation_has_its_inputs(seed: int, choice: int, layers: int) -> None:
    problem = random_problem(seed, layers)
    seq = sequence_for(problem, choice)
    roots = {problem.storages[s].root for s in seq.saved}
    at_hand: set[int] = set()
    for i in seq.forward:
        assert problem.ops[i].forward and at_hand.issuperset(problem.ops[i].inputs)
        at_hand.add(i)
    assert roots <= at_hand
    at_hand = set(roots)
    for i in seq.backward:
        assert at_hand.issuperset(problem.ops[i].inputs), problem.ops[i]
        assert not problem.ops[i].forward or problem.ops[i].recomputable
        assert i not in at_hand  # nothing that is there is made again
        at_hand.add(i)
    assert {i for i in problem.backward_ops} <= set(seq.backward)


@given(seeds, seeds, sizes)
@settings(max_examples=100)
def test_nothing_is_recomputed_before_its_need(seed: int, choice: int, layers: int) -> None:
    problem = random_problem(seed, layers)
    seq = sequence_for(problem, choice)
    for at, i in enumerate(seq.backward):
        if problem.ops[i].forward:
            users = [j for j in seq.backward if i in problem.ops[j].inputs]
            assert users
            later = [j for j in seq.backward[at + 1 :] if not problem.ops[j].forward]
            first = later[0]
            assert i in problem.closure({first})


def slow_curves(problem: Problem, seq: Sequence, placed: Placement | None) -> tuple[list[int], ...]:
    """Near bytes at every position, by asking of each storage whether it is there."""
    moves = {move.storage: move for move in placed.moves} if placed else {}

    def touches(order: tuple[int, ...], s: int) -> list[int]:
        return [at for at, i in enumerate(order) if s in problem.ops[i].touches]

    def near(s: int, at: int, phase: str) -> bool:
        storage = problem.storages[s]
        if storage.root < 0:
            return not storage.tangent or phase == "backward"
        order = seq.forward if phase == "forward" else seq.backward
        used = touches(order, s)
        made_in_forward = storage.root in seq.forward
        if phase == "forward":
            if not used or at < used[0]:
                return False
            if s in moves:
                return at < max(moves[s].wait_offload, used[-1] + 1)
            stays = storage.pinned or s in seq.saved
            return stays or at <= used[-1]
        if storage.pinned and made_in_forward:
            return True
        if not used:
            return False
        end = len(order) if s in problem.gradients else used[-1]
        if s in moves:
            return moves[s].prefetch <= at <= end
        return (0 if s in seq.saved else used[0]) <= at <= end

    def curve(phase: str, order: tuple[int, ...]) -> list[int]:
        return [
            sum(x.nbytes for s, x in enumerate(problem.storages) if near(s, at, phase))
            + problem.ops[i].workspace_bytes
            for at, i in enumerate(order)
        ]

    return curve("forward", seq.forward), curve("backward", seq.backward)


@given(seeds, seeds, sizes)
@settings(max_examples=150)
def test_liveness_is_exact(seed: int, choice: int, layers: int) -> None:
    problem = random_problem(seed, layers)
    seq = sequence_for(problem, choice)
    live = liveness(problem, seq, frozenset())
    forward, backward = slow_curves(problem, seq, None)
    assert live.forward[:-1].tolist() == forward
    assert live.backward[:-1].tolist() == backward


@given(seeds, seeds, sizes, st.floats(0.5, 1.0), st.sampled_from([10.0, 1000.0]))
@settings(max_examples=150)
def test_placement_keeps_the_budget(
    seed: int, choice: int, layers: int, share: float, rate: float
) -> None:
    problem = random_problem(seed, layers)
    links = Links(rate, rate, 0.5)
    saved = any_saved(problem, choice)
    movable = frozenset(s for s in saved if can_offload(problem, s))
    loose = evaluate(problem, Decision(saved), links, 1 << 40).placement.peak_bytes
    budget = int(loose * share)
    outcome = evaluate(problem, Decision(saved, movable), links, budget)
    placed = outcome.placement
    forward, backward = slow_curves(problem, outcome.sequence, placed)
    assert placed.forward_curve[:-1].tolist() == forward
    assert placed.backward_curve[:-1].tolist() == backward
    assert max(forward + backward) <= placed.peak_bytes
    assert not placed.fits(budget) or max(forward + backward) <= budget
    timing = placed.timing
    assert timing.step_us >= timing.compute_us * (1 - 1e-9)
    assert abs(timing.step_us - timing.compute_us - timing.stall_us) < 1e-6
    assert abs(timing.stall_us - sum(us for *_, us in timing.stalls)) < 1e-6
    for move in placed.moves:
        assert move.offload <= move.wait_offload and move.prefetch <= move.wait_prefetch


def test_a_fast_link_never_stalls_and_a_slow_one_does() -> None:
    problem = random_problem(5, 10)
    saved = problem.saved_by_default
    decision = Decision(saved, saved)
    fast = evaluate(problem, decision, Links(1e9, 1e9), 1 << 40).placement
    slow = evaluate(problem, decision, Links(1.0, 1.0), 1 << 40).placement
    assert fast.timing.stall_us < 1e-3 < slow.timing.stall_us
    assert fast.timing.compute_us == slow.timing.compute_us


def test_placement_of_what_cannot_fit_says_so() -> None:
    problem = random_problem(3, 8)
    seq = make_sequence(problem, problem.saved_by_default)
    placed = place(problem, seq, frozenset(), Links(1.0, 1.0), 1)
    assert not placed.fits(1)
    assert placed.peak_bytes > problem.base_bytes
