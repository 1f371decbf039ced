"""Models that are whole give no finding in any regime, and each injected fault is found where it must be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from positionlib.check import FAMILIES, REGIMES, probe, transformers_step
from tests.check import peers
from tests.check.models import FAULTS, Tiny
from tests.refusals import refused

PROMPTS, PAD = [[3, 8, 1, 12, 9, 4, 20], [7, 2, 5, 11], [6, 14, 15, 9, 22]], 30


def codes(report) -> list[str]:
    return [f.code.removeprefix("probe-") for f in report.findings]


def probed(name: str, fault: str | None = None, **settings):
    return probe(Tiny(name, fault), name, PROMPTS, pad_token_id=PAD, tolerance=1e-9, **settings)


def test_hits_and_false_alarms(capsys):
    """The table: each model with a fault and the regimes that noticed, and the findings on whole models."""
    hits = [(fault, source, name, regimes.split(), codes(probed(name, fault))) for fault, source, name, regimes in FAULTS]
    alarms = {name: found for name in FAMILIES if (found := codes(probed(name)))}
    with capsys.disabled():
        print("\nfault                         family     from                              found by")
        for fault, source, name, _, found in hits:
            print(f"{fault:29} {name:10} {source:33} {', '.join(found) or '-'}")
        print(f"{sum(bool(h[4]) for h in hits)} of {len(hits)} faults of {len({h[0] for h in hits})} kinds found; "
              f"false alarms on {len(alarms)} of {len(FAMILIES)} whole models")
    assert [h for h in hits if h[3] != h[4]] == [] and alarms == {}


def test_counting_padding_is_nothing_to_scores_that_read_differences():
    assert codes(probed("llama", "padding counted")) == []


def test_a_finding_names_the_first_layer_and_token_with_the_size():
    model = Tiny("gpt2", "triangle to the first key")
    found, = probe(model, "gpt2", PROMPTS, pad_token_id=PAD, regimes=["chunks"], tolerance=1e-9).findings
    n = len(PROMPTS[0])

    def fed(start, end, cache=None):
        return model(torch.tensor([PROMPTS[0][start:end]]), torch.ones(1, end).long(), torch.arange(start, end)[None], None, cache)

    whole, (first, cache) = fed(0, n)[0], fed(0, n // 2)
    second, _ = fed(n // 2, n, cache)
    assert torch.equal(second[0], whole[0][:, n // 2:])  # the embedding, layer 0, agrees
    size = float((second[1][0, 0] - whole[1][0, n // 2]).detach().abs().max())
    assert (found.code, found.row, found.field) == ("probe-chunks", 0, "layers.1")
    assert found.message == (f"chunks differs from the whole prompt first in layer 1 of 0..3, at token {n // 2} of prompt 0: by {size:.2g}, "
                             f"where values reach {float(whole[1].detach().abs().max()):.2g}")


def test_what_is_not_run_is_named():
    told = probed("t5").explanation
    want = {regime: "agrees" for regime in REGIMES} | {regime: "not run: t5 is bidirectional" for regime in ("chunks", "decode", "padded-decode", "future")}
    want["shift"] = "not run: t5 reads no position_ids"
    assert told[1:] == tuple(f"{regime}: {said}" for regime, said in want.items())


def test_the_rounding_of_a_bag_of_tokens_is_no_order():
    table = 1 + 1e-3 * torch.randn(32, 4096, generator=torch.Generator().manual_seed(0))

    def bag(input_ids, **call):
        x = table[input_ids]
        return [x, x + 1e-2 * x.mean(1, keepdim=True)], None

    prompt = torch.tensor(PROMPTS[:1])
    rolled = prompt[:, [1, 2, 3, 4, 5, 0, 6]]
    assert float((bag(prompt)[0][1] - bag(rolled)[0][1])[0, -1].abs().max()) > 1e-7, "a sum in another order is rounded otherwise"
    assert codes(probe(bag, "llama", PROMPTS, pad_token_id=PAD, regimes=["order"])) == ["order"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", FAMILIES)
def test_order_is_noticed_where_attention_is_a_small_part_of_the_state(name, dtype):
    """As after a released initialisation: the order moves the state by less than the tolerance, though by all that attention is."""
    for fault, want in ((None, []), ("no positions", ["order"])):
        model = Tiny(name, fault)
        model.weights[:, 3] *= 1e-4  # W_o
        model.table, model.weights = model.table.to(dtype), model.weights.to(dtype)
        assert codes(probe(model, name, PROMPTS, pad_token_id=PAD, regimes=["order"])) == want


@pytest.mark.parametrize("name", FAMILIES)
def test_order_is_noticed_in_a_long_prompt(name):
    """Beyond 16 tokens T5's first two stand in one bucket of the last one, and may be exchanged."""
    prompts = [[3, 8, *range(1, 28)], PROMPTS[1]]
    for fault, want in ((None, []), ("no positions", ["order"])):
        assert codes(probe(Tiny(name, fault), name, prompts, pad_token_id=PAD, regimes=["order"], tolerance=1e-9)) == want


def test_what_a_model_raises_in_a_regime_is_a_finding():
    found, = probed("llama", "a step of one token fails", regimes=["decode"]).findings
    assert found.message == "decode raises RuntimeError: The size of tensor a (1) must match the size of tensor b (2)" and found.row is None


def test_an_output_alone_will_do():
    def output_only(**call):
        layers, cache = model(**call)
        return layers[-1:], cache

    for fault, want in ((None, []), ("decode restarts", ["chunks", "decode", "padded-decode"])):
        model = Tiny("gpt2", fault)
        assert codes(probe(output_only, "gpt2", PROMPTS, pad_token_id=PAD, tolerance=1e-9)) == want


@pytest.mark.parametrize(("changes", "field"), [
    ({"name": "gpt9"}, "family"), ({"regimes": ["sideways"]}, "regimes"), ({"tolerance": 0.0}, "tolerance"), ({"tolerance": 1}, "tolerance"),
    ({"prompts": [[1, 2, 3, 4]] * 2}, "prompts"), ({"prompts": [[1, 2, 3], [1, 2, 3, 4]]}, "prompts"),
    ({"prompts": [[0.5, 1.0, 2.0, 3.0], [1, 2, 3, 4, 5]]}, "prompts"), ({"prompts": [[5, 5, 3, 4], [1, 2, 3, 4, 5]]}, "prompts"),
])
def test_probes_that_can_show_nothing_are_refused(changes, field):
    refused(lambda: probe(**({"step": Tiny("gpt2"), "name": "gpt2", "prompts": PROMPTS, "pad_token_id": PAD} | changes)), field)


def test_models_without_a_reference_are_refused():
    model = Tiny("gpt2")

    def noisy(**call):
        layers, cache = model(**call)
        return [layer + torch.rand(()) for layer in layers], cache

    def broken(**call):
        layers, cache = model(**call)
        return [layer * torch.nan for layer in layers], cache

    def last_token(**call):
        layers, cache = model(**call)
        return [layer[:, -1:] for layer in layers], cache

    for step, field in ((noisy, "step"), (broken, "step"), (last_token, "layers")):
        refused(lambda: probe(step, "gpt2", PROMPTS, pad_token_id=PAD), field)


class Library:
    """A model called as those of transformers are: only what it was built for may be passed, and a packed mask is additive and 4-D."""

    dtype = torch.float64

    def __init__(self, name: str, fault: str | None = None) -> None:
        self.model, self.takes = Tiny(name, fault), {"input_ids", "attention_mask", "output_hidden_states"}
        self.takes |= {"position_ids"} if FAMILIES[name].coordinate == "position_ids" else set()
        self.takes |= {"past_key_values", "use_cache"} if FAMILIES[name].causal else set()

    def __call__(self, **call):
        assert set(call) == self.takes and call["output_hidden_states"] is True
        mask, segments = call["attention_mask"], None
        if mask.ndim == 4:
            segments = (mask[:, 0] == 0).long().argmax(-1)  # the first key that a token reads begins its sequence
            mask = torch.ones_like(segments)
        layers, cache = self.model(call["input_ids"], mask, call.get("position_ids"), segments, call.get("past_key_values"))
        return SimpleNamespace(hidden_states=tuple(layers[:-1]), logits=layers[-1], past_key_values=cache)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_called_as_in_transformers(name):
    report = probe(transformers_step(Library(name), name), name, PROMPTS, pad_token_id=PAD, tolerance=1e-9)
    packs = FAMILIES[name].causal and FAMILIES[name].coordinate == "position_ids"
    packed, = (line for line in report.explanation if line.startswith("packed: "))
    assert report.findings == () and (packed == "packed: agrees") == packs and ("not run" in packed) != packs


def test_a_fault_is_seen_through_the_adapter():
    assert codes(probe(transformers_step(Library("llama", "segments ignored"), "llama"), "llama", PROMPTS, pad_token_id=PAD, tolerance=1e-9)) == ["packed"]


@pytest.mark.peer("transformers", 5)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "t5-decoder"])
def test_random_transformers_models_are_clean(name):
    assert peers.probed(name).findings == ()


@pytest.mark.peer("transformers", 5)
def test_every_fault_in_a_transformers_model_is_noticed(capsys):
    """The table that `make probe` prints."""
    with capsys.disabled():
        print()
        assert peers.main() == 0
