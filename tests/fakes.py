"""Small stand-ins for tests: tokenizers of every kind that Braid meets, built in milliseconds.

byte_tokenizer            one token a byte, three control tokens, a ChatML template
gpt2_tokenizer            byte-level BPE, GPT-2's regex
llama3_tokenizer          byte-level BPE, a regex with optional leading punctuation and 3-digit groups
qwen_tokenizer            the same with single digits, an NFC normaliser
sentencepiece_tokenizer   BPE with byte fallback: a `▁` normaliser (as Llama 2) or Metaspace (as Gemma, Mistral)
unigram_tokenizer         Unigram with Metaspace (as T5)
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox doesn't care.",
    "How many apples are there? There are 12 apples, 305 pears and 2,048 plums.",
    "def main(argument):\n    return argument + 1\n\n\nif __name__ == '__main__':\n\tmain(1)\n",
    "Hello, world! Hello there... (hello) [hello] {hello} <hello> <<hello>>",
    "café naïve résumé Zoë  two  spaces   three   spaces\t\ttabs\r\nand\r\nlines\n\n\n",
    "你好，世界。今天天气很好。你好，世界。",
    "こんにちは 世界 مرحبا بالعالم Здравствуй, мир",
    "🙂🙂 👩‍👩‍👧 🇩🇪 thumbs 👍🏽 up",
    "the the the of of of and and and to to in in a a is is that that it it for for",
)


def byte_alphabet() -> list[str]:
    """The printable stand-in of each of the 256 bytes, as byte-level tokenizers spell them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return [chr(byte) if byte in set(printable) else chr(256 + others.index(byte)) for byte in range(256)]


def wrap(tokenizer: Tokenizer, template: str | None = CHATML, **names: Any) -> PreTrainedTokenizerFast:
    """Dress a raw tokenizer up as what `AutoTokenizer` returns."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=None,
        eos_token=names.pop("eos_token", "<|im_end|>"),
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        **names,
    )
    fast.chat_template = template
    return fast


def add_controls(tokenizer: Tokenizer) -> None:
    """Add the control tokens of the ChatML template."""
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROLS])


@cache
def _byte_backend() -> str:
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(byte_alphabet())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    add_controls(tokenizer)
    return tokenizer.to_str()


def byte_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """One token a byte: ids 0…255 are the bytes, 256 `<|im_start|>`, 257 `<|im_end|>` (eos), 258 `<|endoftext|>`.

    Args:
        template: Jinja chat template, ChatML by default, None for a model without one.

    Returns:
        A tokenizer with a vocabulary of 259, as `AutoTokenizer` would return it.
    """
    return wrap(Tokenizer.from_str(_byte_backend()), template)


GPT2_REGEX = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
O200K_REGEX = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def _regex_backend(regex: str, nfc: bool, ignore_merges: bool) -> str:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=620, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*CORPUS, "a!\n\n b?\n\n c;\n d:\n//\n" * 9], trainer)
    if ignore_merges:  # such vocabularies have words that no merge leads to, as Llama 3's does
        spec = json.loads(tokenizer.to_str())
        snowman = "".join(byte_alphabet()[byte] for byte in "☃".encode())
        spec["model"]["vocab"][snowman] = len(spec["model"]["vocab"])
        tokenizer = Tokenizer.from_str(json.dumps(spec))
    add_controls(tokenizer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<b>", rstrip=True)])
    return tokenizer.to_str()


def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with GPT-2's word pattern."""
    return wrap(Tokenizer.from_str(_regex_backend(GPT2_REGEX, nfc=False, ignore_merges=False)))


def llama3_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE in the manner of Llama 3: digits by three, whole words looked up before merging."""
    return wrap(Tokenizer.from_str(_regex_backend(LLAMA3_REGEX, nfc=False, ignore_merges=True)))


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE in the manner of Qwen: single digits, text normalised to NFC."""
    return wrap(Tokenizer.from_str(_regex_backend(QWEN_REGEX, nfc=True, ignore_merges=False)))


def o200k_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE in the manner of o200k: words split by case, slashes joined to line ends."""
    return wrap(Tokenizer.from_str(_regex_backend(O200K_REGEX, nfc=False, ignore_merges=False)))


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def without_byte_controls(tokenizer: Tokenizer) -> Tokenizer:
    """Turn byte tokens, which a trainer takes for control tokens, into ordinary ones, as they are in real models."""
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [entry for entry in spec["added_tokens"] if entry["content"] not in BYTE_TOKENS]
    return Tokenizer.from_str(json.dumps(spec))


@cache
def _sentencepiece_backend(legacy: bool) -> str:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    strip = [decoders.Strip(" ", 1, 0)] if legacy else []
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    # Words are split only while training, as SentencePiece does; afterwards merges run over the whole text.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"▁+[^▁]*" if legacy else r"é\n+|▁*[^▁\né]+|\n+|▁+"), "isolated"
    )
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=["<unk>", "<s>", "</s>", *BYTE_TOKENS],
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, "<s> a</s> b</s>", "é\n\né\n\n" * 9], trainer)
    tokenizer.pre_tokenizer = None
    tokenizer = without_byte_controls(tokenizer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    add_controls(tokenizer)
    if not legacy:
        tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in (4, 5)])
    return tokenizer.to_str()


def sentencepiece_tokenizer(legacy: bool = True) -> PreTrainedTokenizerFast:
    """BPE with byte fallback and no word pattern.

    Args:
        legacy: put a `▁` before every text and strip it when decoding (Llama 2); else bring text into NFC and put
            nothing before it (Gemma).
    """
    return wrap(Tokenizer.from_str(_sentencepiece_backend(legacy)), eos_token="</s>", unk_token="<unk>")


@cache
def _metaspace_backend(split: bool) -> str:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=["<unk>", "<s>", "</s>", *BYTE_TOKENS],
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=split)
    tokenizer = without_byte_controls(tokenizer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    add_controls(tokenizer)
    return tokenizer.to_str()


def metaspace_tokenizer(split: bool = False) -> PreTrainedTokenizerFast:
    """BPE with byte fallback behind a Metaspace rule (Mistral), over whole texts or word by word."""
    return wrap(Tokenizer.from_str(_metaspace_backend(split)), eos_token="</s>", unk_token="<unk>")


@cache
def _unigram_backend() -> str:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(False, True)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    # Without line ends, so that they are unknown and can fuse with unknown text before them.
    tokenizer.train_from_iterator([line.replace("\n", " ") for line in CORPUS], trainer)
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    add_controls(tokenizer)
    return tokenizer.to_str()


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """Unigram with Metaspace, NFKC and collapsed spaces (T5); no byte fallback, so unknown text is `<unk>`."""
    return wrap(Tokenizer.from_str(_unigram_backend()), eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {
    "byte": byte_tokenizer,
    "gpt2": gpt2_tokenizer,
    "llama3": llama3_tokenizer,
    "qwen": qwen_tokenizer,
    "o200k": o200k_tokenizer,
    "llama2": sentencepiece_tokenizer,
    "gemma": lambda: sentencepiece_tokenizer(legacy=False),
    "mistral": metaspace_tokenizer,
    "metaspace-split": lambda: metaspace_tokenizer(split=True),
    "unigram": unigram_tokenizer,
}
"""Every kind of tokenizer by name."""
