"""A tokenizer whose tokens are bytes, with control tokens and a chat template, made in memory."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BOS, START, END = 256, 257, 258
CHATML = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(template: str = CHATML) -> Any:
    """A text begins with <bos>, 256; <|im_start|> is 257, <|im_end|> 258; below are the bytes of UTF-8."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True) for name in ("<bos>", "<|im_start|>", "<|im_end|>")])
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", chat_template=template)
