"""Tiny random models of transformers: their files as they save them, and what their own modules answer. Needs transformers.

    python -m tests.checkpoints.peers        writes tests/fixtures/conversions/FAMILY for the families of the installed major version

A call of a part is a dictionary of its inputs and of ``out``, the source's answer in float64.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

from positionlib.checkpoints import read_safetensors

N, D, H, L, WORDS = 7, 12, 3, 2, 11
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "conversions"
Calls = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Recording:
    """A saved model: its state dict, its configuration, and its answers."""

    state: dict[str, Tensor]
    config: dict
    calls: Calls


def random(model: nn.Module) -> nn.Module:
    """Every parameter away from zero and from one, or half of the conversion would be untested."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def states() -> Tensor:
    return torch.randn(2, N, D, dtype=torch.float64)


def ids(low: int = 2) -> Tensor:
    return torch.randint(low, WORDS, (2, N))


def hidden() -> Tensor:
    """The causal mask as a number to add."""
    return torch.zeros(N, N, dtype=torch.float64).masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)[None, None]


def layers(answer: Callable[[int, Tensor], Tensor], name: str = "attention", **more: Tensor) -> Calls:
    """One call a layer, of its attention over random states."""
    found = {}
    for n in range(L):
        x = states()
        found[f"{name}.{n}"] = {"x": x, "out": answer(n, x), **more}
    return found


CAUSAL = {"causal": torch.tensor(True)}
BOXES = torch.tensor([[[1, 2, 5, 6], [0, 0, 0, 0], [3, 1, 9, 4], [2, 2, 2, 2], [8, 0, 9, 9], [4, 5, 6, 7], [0, 3, 9, 8]]]).expand(2, -1, -1)


def bert(kind: str = "absolute"):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=D, num_attention_heads=H, num_hidden_layers=L, intermediate_size=10, max_position_embeddings=9, vocab_size=WORDS,
                        attn_implementation="eager", **({} if kind == "absolute" else {"position_embedding_type": kind}))
    model = random(BertForMaskedLM(config))
    words, types = ids(), torch.randint(0, 2, (2, N))
    base = model.bert
    return model, {"input": {"ids": words, "types": types, "out": base.embeddings(words, types)}, **layers(lambda n, x: base.encoder.layer[n].attention(x)[0])}


def roberta():
    from transformers import RobertaConfig, RobertaModel

    model = random(RobertaModel(RobertaConfig(hidden_size=D, num_attention_heads=H, num_hidden_layers=L, intermediate_size=10, max_position_embeddings=11,
                                              vocab_size=WORDS, type_vocab_size=2, attn_implementation="eager")))
    words, types = ids(), torch.randint(0, 2, (2, N))
    words[1, 4:] = 1  # padding: its rows are not compared
    real = torch.tensor([[True] * N, [True] * 4 + [False] * 3])
    return model, {"input": {"ids": words, "types": types, "real": real, "out": model.embeddings(words, types)},
                   **layers(lambda n, x: model.encoder.layer[n].attention(x)[0])}


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = random(GPT2LMHeadModel(GPT2Config(n_embd=D, n_head=H, n_layer=L, n_positions=10, vocab_size=WORDS, attn_implementation="eager")))
    base, words = model.transformer, ids()
    first = base(words, position_ids=torch.arange(3, 3 + N)[None], output_hidden_states=True).hidden_states[0]
    return model, {"input": {"ids": words, "positions": torch.arange(3, 3 + N), "out": first},
                   **layers(lambda n, x: base.h[n].attn(x, attention_mask=hidden())[0], **CAUSAL)}


def opt():
    from transformers import OPTConfig, OPTModel

    model = random(OPTModel(OPTConfig(hidden_size=D, num_attention_heads=H, num_hidden_layers=L, ffn_dim=10, max_position_embeddings=9, vocab_size=WORDS,
                                      word_embed_proj_dim=8, attn_implementation="eager")))
    words, real = ids(), torch.tensor([[True] * N, [False] * 3 + [True] * 4])
    first = model(words, attention_mask=real.long(), output_hidden_states=True).hidden_states[0]
    return model, {"input": {"ids": words, "real": real, "out": first},
                   **layers(lambda n, x: model.decoder.layers[n].self_attn(hidden_states=x, attention_mask=hidden())[0], **CAUSAL)}


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    model = random(T5ForConditionalGeneration(T5Config(
        d_model=D, d_kv=5, num_heads=H, num_layers=L, num_decoder_layers=L, d_ff=10, vocab_size=WORDS, relative_attention_num_buckets=8,
        relative_attention_max_distance=20, feed_forward_proj="gated-gelu", attn_implementation="eager")))

    def answer(stack, mask):
        first = stack.block[0].layer[0].SelfAttention
        return lambda n, x: stack.block[n].layer[0].SelfAttention(x, mask=mask, position_bias=None if n == 0 else first(x, mask=mask)[1])[0]

    # The causal mask is part of the bias that the source hands on; a later layer reuses both.
    return model, {**layers(answer(model.encoder, None), "encoder.attention"), **layers(answer(model.decoder, hidden()), "decoder.attention", **CAUSAL)}


def mpnet():
    from transformers import MPNetConfig, MPNetModel

    model = random(MPNetModel(MPNetConfig(hidden_size=D, num_attention_heads=H, num_hidden_layers=L, intermediate_size=10, max_position_embeddings=11,
                                          vocab_size=WORDS)))
    words = ids()
    return model, {"input": {"ids": words, "out": model.embeddings(words)},
                   **layers(lambda n, x: model.encoder.layer[n].attention(x, None, position_bias=model.encoder.compute_position_bias(x))[0])}


def bloom():
    from transformers import BloomConfig, BloomForCausalLM
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    model = random(BloomForCausalLM(BloomConfig(hidden_size=D, n_head=H, n_layer=L, vocab_size=WORDS, attn_implementation="eager")))
    alibi = build_alibi_tensor(torch.ones(2, N), H, torch.float64)
    return model, layers(lambda n, x: model.transformer.h[n].self_attention(x, torch.zeros_like(x), alibi, hidden())[0], **CAUSAL)


def mpt():
    from transformers import MptConfig, MptModel

    config = MptConfig(d_model=D, n_heads=H, n_layers=L, vocab_size=WORDS, max_seq_len=9, attn_config={"alibi": True, "alibi_bias_max": 6})
    model = random(MptModel(config))
    alibi = model.build_mpt_alibi_tensor(H, N, 6)
    return model, layers(lambda n, x: model.blocks[n].attn(x, alibi, attention_mask=hidden() < 0)[0], **CAUSAL)


def falcon(alibi: bool = False):
    from transformers import FalconConfig, FalconModel
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    settings = dict(alibi=True, multi_query=False, parallel_attn=False, bias=True) if alibi else dict(new_decoder_architecture=True, num_kv_heads=2)
    config = FalconConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=L, vocab_size=WORDS, max_position_embeddings=9,
                          attn_implementation="eager", **settings)
    model, places = random(FalconModel(config)), torch.arange(N)[None]
    slopes = build_alibi_tensor(torch.ones(2, N, dtype=torch.long), 4, torch.float64) if alibi else None
    found = {}
    for n in range(L):
        x = torch.randn(2, N, 16, dtype=torch.float64)
        more = {} if alibi else {"position_embeddings": model.rotary_emb(x, places)}
        found[f"attention.{n}"] = {"x": x, **CAUSAL, "out": model.h[n].self_attention(x, alibi=slopes, attention_mask=hidden(), **more)[0]}
    return model, found


def deberta():
    from transformers import DebertaConfig, DebertaModel

    return _disentangled(DebertaModel, DebertaConfig, max_relative_positions=4)


def deberta_v2():
    from transformers import DebertaV2Config, DebertaV2Model

    return _disentangled(DebertaV2Model, DebertaV2Config, max_relative_positions=8, position_buckets=4, share_att_key=True, norm_rel_ebd="layer_norm",
                         conv_kernel_size=3)


def _disentangled(model, config, **settings):
    made = random(model(config(hidden_size=D, num_attention_heads=H, num_hidden_layers=L, intermediate_size=10, vocab_size=WORDS, relative_attention=True,
                               pos_att_type=["c2p", "p2c"], position_biased_input=False, max_position_embeddings=9, **settings)))
    encoder = made.encoder

    def answer(n, x):
        return encoder.layer[n].attention(x, torch.ones(2, 1, N, N), rel_embeddings=encoder.get_rel_embedding(), relative_pos=encoder.get_rel_pos(x))[0]

    return made, layers(answer)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=D, num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_hidden_layers=L, intermediate_size=10, vocab_size=WORDS,
                         max_position_embeddings=16, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, attn_implementation="eager")
    model, places = random(LlamaForCausalLM(config)), torch.arange(N)[None]
    return model, layers(lambda n, x: model.model.layers[n].self_attn(x, model.model.rotary_emb(x, places), attention_mask=hidden())[0], **CAUSAL)


def gptj():
    from transformers import GPTJConfig, GPTJModel

    model = random(GPTJModel(GPTJConfig(n_embd=16, n_head=2, n_layer=L, rotary_dim=4, n_positions=9, vocab_size=WORDS, attn_implementation="eager")))
    places, found = torch.arange(N)[None], {}
    for n in range(L):
        x = torch.randn(2, N, 16, dtype=torch.float64)
        found[f"attention.{n}"] = {"x": x, **CAUSAL, "out": model.h[n].attn(x, position_embeddings=model.rotary_emb(x, places), attention_mask=hidden())[0]}
    return model, found


def vit():
    from transformers import ViTConfig, ViTModel

    model = random(ViTModel(ViTConfig(hidden_size=D, num_attention_heads=H, num_hidden_layers=L, intermediate_size=10, image_size=6, patch_size=2,
                                      num_channels=2, attn_implementation="eager")))
    small, wide = (torch.randn(2, 2, *size, dtype=torch.float64) for size in ((6, 6), (8, 10)))
    return model, {"input": {"pixels": small, "out": model.embeddings(small)},
                   "input, another size": {"pixels": wide, "out": model.embeddings(wide, interpolate_pos_encoding=True)},
                   **layers(lambda n, x: model.layers[n].attention(x)[0])}


def layoutlmv3():
    from transformers import LayoutLMv3Config, LayoutLMv3Model

    model = random(LayoutLMv3Model(LayoutLMv3Config(
        hidden_size=D, num_attention_heads=H, num_hidden_layers=L, intermediate_size=10, vocab_size=WORDS, max_position_embeddings=11, type_vocab_size=2,
        max_2d_position_embeddings=10, coordinate_size=2, shape_size=2, rel_pos_bins=8, max_rel_pos=12, rel_2d_pos_bins=16, max_rel_2d_pos=40, input_size=6,
        patch_size=2, num_channels=2, attn_implementation="eager")))
    words, pixels, places = ids(), torch.randn(2, 2, 6, 6, dtype=torch.float64), torch.arange(N).expand(2, -1)
    bias = model.encoder._compute_position_bias(places, BOXES)
    return model, {"input": {"ids": words, "boxes": BOXES, "out": model.embeddings(input_ids=words, bbox=BOXES)},
                   "image": {"pixels": pixels, "out": model.forward_image(pixels)},
                   **layers(lambda n, x: model.encoder.layer[n].attention(x, None, position_bias=bias), boxes=BOXES)}


PEERS: dict[str, tuple[int, Callable]] = {
    "bert": (5, bert), "bert, relative_key": (4, lambda: bert("relative_key")), "bert, relative_key_query": (4, lambda: bert("relative_key_query")),
    "roberta": (5, roberta), "gpt2": (5, gpt2), "opt": (5, opt), "t5": (5, t5), "mpnet": (5, mpnet), "bloom": (5, bloom), "mpt": (5, mpt),
    "falcon": (5, falcon), "falcon-alibi": (5, lambda: falcon(True)), "deberta": (5, deberta), "deberta-v2": (5, deberta_v2), "llama": (5, llama),
    "gptj": (5, gptj), "vit": (5, vit), "layoutlmv3": (5, layoutlmv3),
}


@torch.no_grad()
def record(label: str, seed: int, folder: Path) -> None:
    """Build, save and ask one model; the files lie in ``folder`` as save_pretrained wrote them."""
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    model, calls = PEERS[label][1]()
    model.save_pretrained(folder)
    flat = {f"{part}/{name}": tensor.contiguous().clone() for part, call in calls.items() for name, tensor in call.items()}
    save_file(flat, folder / "calls.safetensors")


def recording(folder: Path) -> Recording:
    """What :func:`record` wrote."""
    calls: Calls = {}
    for name, tensor in read_safetensors(folder / "calls.safetensors").items():
        part, _, field = name.partition("/")
        calls.setdefault(part, {})[field] = tensor
    return Recording(read_safetensors(folder / "model.safetensors"), json.loads((folder / "config.json").read_text("utf-8")), calls)


def live(label: str, seed: int) -> Recording:
    """A model that was made just now."""
    with tempfile.TemporaryDirectory() as folder:
        record(label, seed, Path(folder))
        return recording(Path(folder))


if __name__ == "__main__":
    installed = int(metadata.version("transformers").split(".")[0])
    for name, (major, _) in PEERS.items():
        if major == installed and (not sys.argv[1:] or name in sys.argv[1:]):
            target = FIXTURES / name.replace(", ", "-")
            target.mkdir(parents=True, exist_ok=True)
            record(name, 3, target)
            (target / "generation_config.json").unlink(missing_ok=True)
            print(f"{name}: {sum(file.stat().st_size for file in target.iterdir())} bytes")
