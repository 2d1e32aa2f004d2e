"""The tokenizer that a GGUF file holds, as llama.cpp reads it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from arch.errors import ModelError, say, show_value
from arch.pretrained.gguf.reader import open_gguf

DIGITS_FIRST = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Ways to split a text in which each digit is taken out before it is split as GPT-2's."""
LIKE_GPT2 = (*DIGITS_FIRST, "gpt-2", "mpt", "olmo", "jais", "phi-2", "gigachat", "mellum",
             "a.x-4.0", "trillion")  # fmt: skip
"""Ways to split a text as GPT-2's, after that."""
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
               "lfm2", "jina-v5-nano", "tekken")  # fmt: skip
"""Ways to split a text after which llama.cpp takes a word that is a token, whatever merges say."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
WHOLE = (UNKNOWN, CONTROL, USER_DEFINED)
"""Kinds of tokens that llama.cpp takes whole from a text."""
CONTROLS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>",
    "<|calls|>", "<|flush|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>",
    "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>", "[e~[",
    "<end_of_utterance>", "<|tool_response>", "<｜end▁of▁sentence｜>", "<|fim_prefix|>",
    "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
    "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>",
    "▁<SUF>", "<|code_suffix|>", "<|suffix|>", "<|fim_middle|>", "<fim-middle>",
    "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>",
    "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
}  # fmt: skip
"""Tokens that llama.cpp takes for control tokens, of whatever kind a file says that they are."""
KEY = "tokenizer.ggml."
BLANK = "▁"
"""What SentencePiece writes for a blank."""


def read_own_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer that a file holds, as llama.cpp reads it, whatever lies beside the file.

    transformers' tokenizer differs from llama.cpp's: it adds <|endoftext|> after the file's tokens;
    adds no leading blank to a text that begins with one; merges inside words that are tokens
    themselves; keeps digits with the blank before them; and takes other tokens whole, see
    `_take_whole`. The last rows that a converter has named `[PAD` and their number are no tokens.

    Raises:
        ModelError: the file lacks a part of its tokenizer, or two of its tokens have one text.
    """
    from transformers import AutoTokenizer

    fields = open_gguf(file).fields
    texts, kinds = _read_tokens(file, fields)
    with TemporaryDirectory() as alone:  # files beside it would be read in its place
        theirs: Any = AutoTokenizer.from_pretrained(
            alone, gguf_file=str(file.absolute()), trust_remote_code=False
        )
    held = json.loads(theirs.backend_tokenizer.to_str())
    held["added_tokens"] = [token for token in held["added_tokens"] if token["id"] < len(texts)]
    known = held["model"]["vocab"]
    held["model"]["vocab"] = {token: known[token] for token in known if known[token] < len(texts)}
    said = _describe_splits(fields)
    if kinds:
        _take_whole(held, texts, kinds, said.get("model") == "gpt2")
    made = Tokenizer.from_str(json.dumps(held))
    if said.get("pre") in DIGITS_FIRST:
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(False)]
        )
    if said.get("model") == "llama":  # SentencePiece: a blank more before a text, unless it says no
        first = said.get("add_space_prefix") is not False
        blank = normalizers.Replace(" ", BLANK)
        steps = [normalizers.Prepend(BLANK), blank] if first else [blank]
        made.normalizer, made.pre_tokenizer = normalizers.Sequence(steps), None
        strip = [decoders.Strip(" ", 1, 0)] if first else []
        made.decoder = decoders.Sequence(
            [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
    if said.get("pre") in WHOLE_WORDS:
        made.model.ignore_merges = True
    _say_how_text_is_split(file, fields, kinds)
    return made


def _read_tokens(file: Path, fields: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """The texts of a file's tokens and their kinds, of which there are none if it says none.

    Raises:
        ModelError: what transformers would make up or cut short in silence: the merges or scores of
            a tokenizer, the tokens of a text that two have, special tokens that are not there.
    """
    model = _describe_splits(fields).get("model")
    scored = model == "llama" and not _is_ordered(fields)
    merged = model in ("gpt2", "gemma4")
    for name in ("tokens", *["scores"] * scored, *["merges"] * merged):
        if KEY + name not in fields:
            raise ModelError(
                f"{file} lacks {KEY}{name}, without which no text can be split; convert the model "
                "again"
            )
    texts = fields[f"{KEY}tokens"].contents()
    for name in ("token_type", *["scores"] * scored):
        held = len(fields[KEY + name].data) if KEY + name in fields else len(texts)
        if held < len(texts):
            raise ModelError(
                f"{file}: {KEY}{name} has {held} entries, {KEY}tokens {len(texts)}; convert the "
                "model again"
            )
    for role in ("bos", "eos", "unknown", "padding"):
        named = fields.get(key := f"{KEY}{role}_token_id")
        if named and not 0 <= (number := named.contents()) < len(texts):
            raise ModelError(f"{file}: {key} is {number}; allowed: 0 to {len(texts) - 1}")
    while texts and texts[-1] == f"[PAD{len(texts) - 1}]":
        texts.pop()
    owners: dict[str, int] = {}
    for number, text in enumerate(texts):
        texts[number] = text or f"[EMPTY_{number}]"
        if (other := owners.setdefault(texts[number], number)) != number:
            raise ModelError(
                f"{file}: {KEY}tokens has {show_value(text)} twice, as {other} and {number}; "
                "convert the model again"
            )
    kinds = fields[f"{KEY}token_type"].contents() if f"{KEY}token_type" in fields else []
    controls = CONTROLS - {"</s>"} if "<|tool_response>" in owners else CONTROLS  # as of Gemma 4
    return texts, [
        CONTROL if text in controls and kind not in WHOLE else kind
        for text, kind in zip(texts, kinds, strict=False)
    ]


def _take_whole(
    held: dict[str, Any], texts: Sequence[str], kinds: Sequence[int], by_bytes: bool
) -> None:
    """Has a tokenizer take those tokens whole from a text that llama.cpp takes whole.

    The class that read them takes no control token whole that has letters outside of the alphabet
    of bytes, and no user-defined token that has a blank, as it spells these in bytes; but every
    token that the file names as the beginning or end of a text, as unknown or as padding.
    """
    model, added = held["model"], {token["id"]: token for token in held["added_tokens"]}
    if by_bytes:
        model["vocab"] = known = {text: number for number, text in enumerate(texts)}
        # Merges of what is now taken whole meet no text.
        model["merges"] = [
            (left, right)
            for left, right in model["merges"]
            if left in known and right in known and left + right in known
        ]
    for number, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        if kind not in WHOLE:
            added.pop(number, None)
        elif number not in added and model["vocab"].get(text) == number:
            added[number] = {"id": number, "content": text, "single_word": False,
                             "lstrip": False, "rstrip": False, "normalized": False,
                             "special": kind != USER_DEFINED}  # fmt: skip
    held["added_tokens"] = [added[number] for number in sorted(added)]


def read_roles(file: Path) -> dict[str, int]:
    """The ids of the tokens that begin and end a text or a turn, as far as a file names them."""
    fields = open_gguf(file).fields
    roles = ("bos", "eos", "eot", "eom")  # of a text; the end of a turn, and of a message
    named = {role: fields.get(f"{KEY}{role}_token_id") for role in roles}
    ids = {f"{role}_token": int(field.contents()) for role, field in named.items() if field}
    return {role: number for role, number in ids.items() if number >= 0}


def _say_how_text_is_split(file: Path, fields: Mapping[str, Any], kinds: Sequence[int]) -> None:
    """Says on stderr where a text may be split otherwise than the model's own tokenizer splits it.

    So where the file names a way that transformers does not know, or has no order of merges.
    """
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    held, why = _describe_splits(fields), ""
    pre, model = held.get("pre"), held.get("model")
    if model == "gpt2" and pre not in (*LIKE_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
        why = f"pre is {show_value(pre) if pre else 'missing'}; its text is split as GPT-2's"
    if model == "llama" and not _is_ordered(fields):
        scores = fields[f"{KEY}scores"].contents()
        pairs = zip(scores, kinds or [NORMAL] * len(scores), strict=False)
        ordinary = [score for score, kind in pairs if kind == NORMAL]
        if len(ordinary) > 1 == len({*ordinary}):
            why = f"scores are all {ordinary[0]:g}; the order of its merges is not known"
    if why:
        say(
            f"{file}: {KEY}{why}, and tokens may be others than the model's own; its "
            "tokenizer.json is in the layout of transformers"
        )


def _is_ordered(fields: Mapping[str, Any]) -> bool:
    """Whether transformers reads no scores: a file has merges, or its vocabulary is their order."""
    family = fields["general.architecture"].contents()
    return f"{KEY}merges" in fields or family in ("gemma", "gemma2", "gemma3")


def _describe_splits(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of how its tokenizer splits a text."""
    return {
        name: field.contents()
        for name in ("model", "pre", "add_space_prefix")
        if (field := fields.get(KEY + name))
    }
