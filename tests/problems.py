"""Random problems for the planner: small chains and DAGs with skips, views and fixed ops."""

from __future__ import annotations

from random import Random

from karma_fx.planner.problem import Op, Problem, Storage

KIB = 1024


def random_problem(seed: int, layers: int = 6, *, branchy: bool = True) -> Problem:
    """A forward of ``layers`` operations and its backward, in reverse order.

    Storage 0 is a parameter, 1 an input, 2 a tangent. Every forward operation reads the one before
    it (and maybe an earlier one) and makes a storage, or a view. Backward operation ``i`` reads the
    gradient that came down to it and the forward tensors that ``i`` read, and maybe its output.
    """
    random = Random(seed)
    storages = [
        Storage("weight", 8 * KIB, -1, savable=False),
        Storage("input", 4 * KIB, -1, savable=False),
        Storage("tangent", 4, -1, tangent=True, savable=False),
    ]
    ops: list[Op] = []
    made: dict[int, int] = {}  # forward operation -> the storage that its output lies in
    reads: dict[int, tuple[int, ...]] = {}
    for i in range(layers):
        earlier = [i - 1] if i else []
        if branchy and i > 1 and random.random() < 0.4:
            earlier.append(random.randrange(i - 1))
        reads[i] = tuple(dict.fromkeys(earlier))
        touched = [made[j] for j in reads[i]] or [0, 1]
        view = i > 0 and random.random() < 0.2
        makes: tuple[int, ...] = ()
        if view:
            made[i] = made[i - 1]
        else:
            made[i] = len(storages)
            makes = (made[i],)
            size = random.choice([1, 2, 4, 8]) * KIB
            storages.append(Storage(f"t{i}", size, i, pinned=i == layers - 1))
        ops.append(
            Op(
                f"f{i}",
                True,
                i * 3 // layers,
                0.1 if view else random.choice([1.0, 5.0, 20.0]),
                0 if view else random.choice([0, KIB]),
                reads[i],
                tuple(dict.fromkeys([*touched, made[i]])),
                makes,
                recomputable=view or random.random() < 0.9,
            )
        )
    gradients = set()
    upstream, upstream_op = 2, -1
    for i in reversed(range(layers)):
        needs = list(reads[i]) + ([i] if random.random() < 0.4 else [])
        inputs = [*needs, *([upstream_op] if upstream_op >= 0 else [])]
        gradient = len(storages)
        storages.append(Storage(f"g{i}", random.choice([1, 2, 4]) * KIB, len(ops)))
        touches = [made[j] for j in needs] + [upstream, gradient]
        ops.append(
            Op(
                f"b{i}",
                False,
                i * 3 // layers,
                random.choice([1.0, 10.0]),
                0,
                tuple(dict.fromkeys(inputs)),
                tuple(dict.fromkeys(touches)),
                (gradient,),
                recomputable=False,
            )
        )
        upstream, upstream_op = gradient, len(ops) - 1
    gradients.add(upstream)
    return Problem(
        tuple(ops),
        tuple(storages),
        (layers - 1,),
        (len(ops) - 1,),
        frozenset(gradients),
        3,
    )


def any_saved(problem: Problem, seed: int) -> frozenset[int]:
    """Some of the storages that forward operations own."""
    random = Random(seed)
    owned = [s for s, x in enumerate(problem.storages) if x.root in problem.forward_ops]
    return frozenset(s for s in owned if random.random() < 0.5)
