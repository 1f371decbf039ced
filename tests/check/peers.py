"""Random models of the transformers library, whole or with one named fault. Run as a module it prints the table of hits and false alarms (make probe)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from unittest import mock

import torch

from positionlib.check import FAMILIES, Family, Report, probe, transformers_step
from positionlib.check.probing import PROMPTS

PAD = 30
SIX = ("gpt2", "opt", "bloom", "t5", "llama", "mpt")
READERS, LEARNED, BIASES = ("gpt2", "opt", "llama"), ("gpt2", "opt"), ("bloom", "mpt")
CACHED = READERS + BIASES


def random_model(name: str):
    """A random model of the transformers library, two layers wide."""
    import transformers as hf

    small = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    wide = small | {"intermediate_size": 32, "max_position_embeddings": 64}
    torch.manual_seed(0)
    model = {
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=32, n_positions=64, n_embd=16, n_layer=2, n_head=2)),
        "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**small, ffn_dim=32, word_embed_proj_dim=16, max_position_embeddings=64)),
        "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2)),
        "t5": lambda: hf.T5EncoderModel(hf.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**wide)), "bert": lambda: hf.BertModel(hf.BertConfig(**wide)),
        "mpt": lambda: hf.MptForCausalLM(hf.MptConfig(d_model=16, n_heads=2, n_layers=2, vocab_size=32, max_seq_len=64)),
        "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**wide)), "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**small)),
        "falcon-alibi": lambda: hf.FalconForCausalLM(hf.FalconConfig(**small, alibi=True)),
    }[name]()
    return model.eval()


class Call:
    """What a step is called with: as a fault finds it, and as it leaves it."""

    def __init__(self, input_ids, attention_mask, position_ids, segment_ids, cache) -> None:
        self.ids, self.mask, self.positions, self.segments, self.cache = input_ids, attention_mask, position_ids, segment_ids, cache
        self.batch, self.new = input_ids.shape
        self.past = attention_mask.shape[1] - self.new
        self.padded = not bool(attention_mask.all())

    def columns(self) -> torch.Tensor:
        return torch.arange(self.past, self.past + self.new).expand(self.batch, -1)


def fed(change: Callable[[Call], object]):
    """A fault in how the model is called: ``change`` is made to each call."""
    def fault(model, kind: Family):
        step = transformers_step(model, kind.name)

        def faulty(**given):
            call = Call(**given)
            change(call)
            return step(input_ids=call.ids, attention_mask=call.mask, position_ids=call.positions, segment_ids=call.segments, cache=call.cache)

        return faulty

    return fault


def at(place: str, value: Callable[[Call], object], when: Callable[[Call], object] = lambda call: True):
    """A fault that puts another value in one place of some calls."""
    return fed(lambda call: setattr(call, place, value(call)) if when(call) else None)


def past(call: Call) -> bool:
    return call.past > 0


def shown(triangle: bool):
    """A mask [1, 1, N, K] in the place of the one [B, K]: every key, or a triangle that is aligned to the first key."""
    def value(call: Call):
        seen = torch.ones(call.new, call.past + call.new, dtype=torch.bool)
        seen = (seen.tril() if triangle else seen) & call.mask.bool()[:, None]
        return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]

    return at("mask", value, past if triangle else lambda call: call.segments is None)


def reordered(call: Call) -> None:
    if call.past and call.batch > 1:
        call.cache.reorder_cache(torch.arange(call.batch).flip(0))


def first_token_hidden(call: Call) -> torch.Tensor:
    return call.mask.scatter(1, call.mask.argmax(1, keepdim=True), 0)


def stale():
    """Positions kept by the shape of a call alone."""
    kept: dict[tuple[int, int], torch.Tensor] = {}
    return at("positions", lambda call: kept.setdefault((call.batch, call.new), call.positions), lambda call: call.segments is None)


def failing(call: Call) -> None:
    if call.past and call.new == 1:
        raise RuntimeError("The size of tensor a (1) must match the size of tensor b (2)")


def nan_in_padding(model, kind: Family):
    def hook(module, args, out):
        return out.masked_fill((args[0] == PAD)[..., None], torch.nan)

    getattr(model, "encoder", model).get_input_embeddings().register_forward_hook(hook)  # T5's stack has a module of its own
    return transformers_step(model, kind.name)


def during(patched: Callable[[object], object], when: Callable[[Call], object] = lambda call: True):
    """A fault inside the model: what ``patched(model)`` replaces is replaced while some calls run."""
    def fault(model, kind: Family):
        step = transformers_step(model, kind.name)

        def faulty(**given):
            if not when(Call(**given)):
                return step(**given)
            with patched(model):
                return step(**given)

        return faulty

    return fault


def no_slopes(model):
    from transformers.models.bloom import modeling_bloom

    if hasattr(model.transformer, "build_mpt_alibi_tensor"):
        whole = model.transformer.build_mpt_alibi_tensor
        return mock.patch.object(model.transformer, "build_mpt_alibi_tensor", lambda *a, **k: 0 * whole(*a, **k), create=True)
    whole = modeling_bloom._get_alibi_slopes
    return mock.patch.object(modeling_bloom, "_get_alibi_slopes", lambda *a, **k: 0 * whole(*a, **k))


def rotation(change):
    """A fault in Llama's rotation: ``change`` makes (q, k) of both, unrotated and rotated."""
    def patched(model):
        from transformers.models.llama import modeling_llama

        whole = modeling_llama.apply_rotary_pos_emb
        return mock.patch.object(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *how, **more: change((q, k), whole(q, k, *how, **more)))

    return patched


def keys_rotated_again(model, kind: Family):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    def change(call: Call) -> None:
        if call.past:
            for layer in call.cache.layers:
                cos, sin = model.model.rotary_emb(layer.keys, position_ids=torch.arange(layer.keys.shape[2])[None])
                layer.keys = apply_rotary_pos_emb(layer.keys, layer.keys, cos, sin)[1]

    return fed(change)(model, kind)


def no_table(model, kind: Family):
    name = {"gpt2": "wpe.weight", "opt": "embed_positions.weight", "t5": "relative_attention_bias.weight"}[kind.name]
    with torch.no_grad():
        [parameter.zero_() for key, parameter in model.named_parameters() if key.endswith(name)]
    return transformers_step(model, kind.name)


FAULTS = [  # fault, where it comes from, the families whose model gets it, one regime that must notice, how it is made (anew for each model)
    ("decode restarts", "O11 O12", READERS, "decode", lambda: at("positions", lambda c: c.columns() - c.past, past)),
    ("cursor advanced twice", "O17 O79", READERS, "decode", lambda: at("positions", lambda c: c.positions + c.past)),
    ("decode off by one", "O32", READERS, "decode", lambda: at("positions", lambda c: c.positions + 1, past)),
    ("every query at the last key", "BERT relative_key", READERS, "chunks", lambda: at("positions", lambda c: c.columns()[:, -1:].expand(-1, c.new), past)),
    ("padding counted", "O01 O03", LEARNED, "left-padding", lambda: at("positions", lambda c: c.columns())),
    ("decode counts padding", "O02", READERS, "padded-decode", lambda: at("positions", lambda c: c.columns(), past)),
    ("positions left to the model", "O03", ("gpt2",), "left-padding", lambda: at("positions", lambda c: None)),
    ("packed positions run on", "O08", LEARNED, "packed", lambda: at("positions", lambda c: c.columns(), lambda c: c.segments is not None)),
    ("segments ignored", "O09", READERS, "packed", lambda: at("segments", lambda c: None)),
    ("batch taken for length", "O49", READERS, "order", lambda: at("positions", lambda c: torch.arange(c.batch)[:, None].expand(-1, c.new))),
    ("one row for all", "O48", READERS, "order", lambda: at("positions", lambda c: torch.full_like(c.positions, c.new))),
    ("kept by length alone", "O19", READERS, "decode", stale),
    ("positions of other rows", "0x0C reordered alone", LEARNED, "left-padding", lambda: at("positions", lambda c: c.positions.flip(0))),
    ("mask ignored", "O06", SIX, "left-padding", lambda: at("mask", lambda c: torch.ones_like(c.mask))),
    ("mask inverted", "O41", SIX, "left-padding", lambda: at("mask", lambda c: 1 - c.mask, lambda c: c.padded)),
    ("mask of other rows", "0x0C reordered alone", SIX, "left-padding", lambda: at("mask", lambda c: c.mask.flip(0))),
    ("first token hidden", "0x0C mask", SIX, "left-padding", lambda: at("mask", first_token_hidden, lambda c: c.padded)),
    ("cached padding shown", "0x0C mask", CACHED, "padded-decode", lambda: at("mask", lambda c: c.mask.index_fill(1, torch.arange(c.past), 1))),
    ("mask of the new tokens", "0x0C mask", CACHED, "padded-decode", lambda: at("mask", lambda c: c.mask[:, c.past:])),
    ("triangle to the first key", "O15", READERS, "chunks", lambda: shown(triangle=True)),
    ("future shown", "O42", READERS, "future", lambda: shown(triangle=False)),
    ("cache dropped", "0x0C cache", CACHED, "decode", lambda: at("cache", lambda c: None)),
    ("cache of other rows", "0x0C cache", CACHED, "padded-decode", lambda: fed(reordered)),
    ("a step of one token fails", "O43 late error", CACHED, "decode", lambda: fed(failing)),
    ("NaN in padding", "O16", SIX, "left-padding", lambda: nan_in_padding),
    ("no positions", "0x0C missing", ("gpt2", "opt", "t5"), "order", lambda: no_table),
    ("no positions", "0x0C missing", BIASES, "order", lambda: during(no_slopes)),
    ("no positions", "0x0C missing", ("llama",), "order", lambda: during(rotation(lambda plain, rotated: plain))),
    ("bias dropped in decode", "O14", BIASES, "decode", lambda: during(no_slopes, past)),
    ("queries rotated alone", "0x0C handoff", ("llama",), "shift", lambda: during(rotation(lambda plain, rotated: (rotated[0], plain[1])))),
    ("cached keys rotated again", "0x0C decode", ("llama",), "decode", lambda: keys_rotated_again),
]


def probed(name: str, fault: Callable | None = None) -> Report:
    """What the probe says of that model."""
    model, kind = random_model(name), FAMILIES[name]
    return probe(fault(model, kind) if fault else transformers_step(model, name), name, PROMPTS, pad_token_id=PAD)


def codes(report: Report) -> list[str]:
    return [f.code.removeprefix("probe-") for f in report.findings]


def hits() -> Iterator[tuple[str, str, str, str, list[str]]]:
    """(fault, source, family, the regime that must notice, those that did) of every fault in every model that gets it."""
    for fault, source, families, must, make in FAULTS:
        for name in families:
            yield fault, source, name, must, codes(probed(name, make()))


def main() -> int:
    """Print the table; 1 when a fault was missed or a whole model was blamed."""
    rows, alarms = list(hits()), {name: codes(probed(name)) for name in SIX}
    print(f"{'fault':28} {'from':22} " + " ".join(f"{name:>6}" for name in SIX) + "   regimes that notice, of the last model")
    for fault, source in dict.fromkeys(row[:2] for row in rows):
        found = {row[2]: row[4] for row in rows if row[:2] == (fault, source)}
        counts = " ".join(f"{len(found[name]) if name in found else '-':>6}" for name in SIX)
        print(f"{fault:28} {source:22} {counts}   {', '.join(list(found.values())[-1])}")
    print(f"{'none: a whole model':28} {'':22} " + " ".join(f"{len(alarms[name]):>6}" for name in SIX))
    missed, blamed = [row for row in rows if row[3] not in row[4]], [name for name in SIX if alarms[name]]
    print(f"{len(rows) - len(missed)} of {len(rows)} found, of {len({row[0] for row in rows})} kinds; false alarms on {len(blamed)} of {len(SIX)} whole models")
    for fault, _, name, must, found in missed:
        print(f"missed: {fault} in {name} must be noticed by {must}, and was by {', '.join(found) or 'none'}")
    return 1 if missed or blamed else 0


if __name__ == "__main__":
    sys.exit(main())
