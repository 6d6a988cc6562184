"""Every wait is needed, and its loss is caught: the mutation test of the transfers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx

from karma_fx import ops, torch_compat
from karma_fx.backend import Partitioner
from karma_fx.errors import VerifyError
from karma_fx.options import parse_options
from karma_fx.passes.codegen import generate
from karma_fx.verify import check_offloads, check_prefetches
from tests.harness import build

WAITS = (ops.wait_offload, ops.wait_prefetch)


class Mutant:
    """Compiles with karma, keeps both graphs, and can run them with one wait taken out."""

    def __init__(self, **options: Any) -> None:
        self.partition = Partitioner(parse_options(options))
        self.graphs: dict[str, fx.GraphModule] = {}
        self.running: dict[str, Any] = {}

    def __call__(self, gm: fx.GraphModule, inputs: Any) -> Any:
        def compiler(name: str) -> Any:
            def compile_graph(graph_module: fx.GraphModule, example_inputs: Any) -> Any:
                self.graphs[name] = graph_module
                self.running[name] = generate(graph_module, example_inputs)

                def run(args: list[Any]) -> Any:
                    return self.running[name](args)

                run._boxed_call = True  # type: ignore[attr-defined]
                return run

            return compile_graph

        return torch_compat.aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            partition_fn=self.partition,
            keep_inference_input_mutations=True,
        )(gm, inputs)

    def waits(self) -> list[tuple[str, str]]:
        return [
            (name, node.name)
            for name, module in self.graphs.items()
            for node in module.graph.nodes
            if node.target in WAITS
        ]

    def without(self, name: str, wait: str) -> fx.GraphModule:
        module = self.graphs[name]
        mutant = fx.GraphModule(module, copy.deepcopy(module.graph))
        node = next(n for n in mutant.graph.nodes if n.name == wait)
        node.replace_all_uses_with(node.args[0])
        mutant.graph.erase_node(node)
        return mutant


def gradients(module: torch.nn.Module, compiled: Any, inputs: Any) -> list[torch.Tensor]:
    module.zero_grad()
    torch.manual_seed(3)
    compiled(*inputs).backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_every_removed_wait_is_caught(name: str) -> None:
    module, inputs = build(name)
    mutant = Mutant(memory="4GiB", strategy="offload", far="poison")
    compiled = torch.compile(module, backend=mutant)
    expected = gradients(module, compiled, inputs)
    assert not any(g.isnan().any() for g in expected)
    faults = mutant.graphs["forward"].karma_far_memory.tier.faults
    assert not faults

    poisoned = 0
    waits = mutant.waits()
    assert len(waits) >= 20 and {graph for graph, _ in waits} == {"forward", "backward"}
    for graph, wait in waits:
        mutated = mutant.without(graph, wait)
        whole = mutant.running[graph]
        mutant.running[graph] = generate(mutated, [])
        found = gradients(module, compiled, inputs)
        mutant.running[graph] = whole
        same = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert faults or not same, f"{wait} was removed from {graph}, and nothing tells"
        poisoned += not same
        faults.clear()
    assert poisoned > 0.6 * len(waits)  # batch norm's backward ignores running statistics
    again = gradients(module, compiled, inputs)
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
    assert not faults


def test_verifier_catches_each_removal_too() -> None:
    module, inputs = build("mlp")
    mutant = Mutant(memory="4GiB", strategy="offload", far="poison")
    torch.compile(module, backend=mutant)(*inputs).backward()
    check = {"forward": check_offloads, "backward": check_prefetches}
    for graph, module_ in mutant.graphs.items():
        check[graph](module_.graph)
    for graph, wait in mutant.waits():
        with pytest.raises(VerifyError):
            check[graph](mutant.without(graph, wait).graph)
