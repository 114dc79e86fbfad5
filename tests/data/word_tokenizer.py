"""A tokenizer whose tokens are words, made in memory."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from megatron_longstraw.data.rows import Place

WORDS = ("<unk>", "<bos>", "user", "assistant", "a", "b", "c", "d")
PLACE = Place(Path("file.jsonl"), 1)
# Says who speaks before each message, and opens the assistant's answer.
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def word_tokenizer(template: str | None = TEMPLATE) -> Any:
    """Ids are the places in WORDS; a plain text begins with <bos>."""
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", unk_token="<unk>")
    tokenizer.chat_template = template
    return tokenizer
