"""Small models on disk for tests of loading."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.fakes import byte_tokenizer

VOCAB = 259


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    """A Llama with random weights, four layers short and 64 wide."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "tie_word_embeddings": False,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


def save_tiny(folder: Path, *, shard: str = "5GB", **changes: Any) -> LlamaForCausalLM:
    """Write a tiny Llama with its tokenizer as a transformers folder."""
    network = tiny_llama(**changes)
    network.save_pretrained(folder, max_shard_size=shard)
    byte_tokenizer().save_pretrained(folder)
    return network


def edit_json(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    data = json.loads(path.read_text())
    for key, value in changes.items():
        data.pop(key, None) if value is None else data.update({key: value})
    path.write_text(json.dumps(data))


def truncate(path: Path, size: int) -> None:
    """Cut a file off after `size` bytes; a negative size cuts so many from the end."""
    content = path.read_bytes()
    path.write_bytes(content[:size])


def byte_symbols() -> list[str]:
    """The vocabulary of the byte tokenizer, in the order of its ids."""
    vocabulary = byte_tokenizer().get_vocab()
    return sorted(vocabulary, key=lambda token: vocabulary[token])


def write_gguf(path: Path, network: LlamaForCausalLM, *, pre: str = "smollm", **fields: Any) -> None:
    """Write a tiny Llama as a GGUF file, its matrices quantised to Q8_0.

    Args:
        path: The file.
        network: 32 wide or a multiple of it, with a vocabulary of 260: that of the byte tokenizer and two blanks.
        pre: What the file says about how its tokenizer cuts text.
        fields: Further fields; `without` names a tensor to leave out, `architecture` another architecture.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    config = network.config
    without = fields.pop("without", None)
    writer = GGUFWriter(path, fields.pop("architecture", "llama"))
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*byte_symbols(), "ĠĠ"])
    writer.add_token_types([1] * 256 + [3] * 3 + [1])
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(258)
    writer.add_chat_template(byte_tokenizer().chat_template)
    for key, value in fields.items():
        writer.add_uint16(key.replace("__", "."), value)
    for name, weight in _gguf_tensors(network).items():
        if name == without:
            continue
        if weight.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _gguf_tensors(network: LlamaForCausalLM) -> dict[str, np.ndarray[Any, Any]]:
    """The weights under GGUF's names, queries and keys in its order of rotated pairs."""
    config = network.config
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, parameter in network.state_dict().items():
        weight = parameter.float().numpy()
        if name == "model.embed_tokens.weight":
            tensors["token_embd.weight"] = weight
        elif name == "model.norm.weight":
            tensors["output_norm.weight"] = weight
        elif name == "lm_head.weight":
            tensors["output.weight"] = weight
        else:
            _, _, layer, rest = name.split(".", 3)
            part = rest.removesuffix(".weight")
            heads = {
                "self_attn.q_proj": config.num_attention_heads,
                "self_attn.k_proj": config.num_key_value_heads,
            }
            if part in heads:
                rows, width = weight.shape
                pairs = weight.reshape(heads[part], 2, rows // heads[part] // 2, width)
                weight = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, width))
            tensors[f"blk.{layer}.{_GGUF_NAMES[part]}.weight"] = weight
    return tensors


def safetensors_header_length(path: Path) -> int:
    """Length in bytes of the JSON header."""
    return int(struct.unpack("<Q", path.read_bytes()[:8])[0])
