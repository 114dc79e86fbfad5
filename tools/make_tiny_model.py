"""Make the packaged tiny model: a Llama that finds the keys of the asked name, and does not know which one is true.

    python tools/make_tiny_model.py --out megatron_longstraw/assets/tiny --seed 0

Takes under a minute on one core, and no training. The weights are laid out by hand, on random weights of a small scale:

* every word has a code, a unit vector; the codes are spread as far apart as they go;
* in the first layer one head looks one token back and copies that word's code, another looks four tokens back;
* in the second layer two heads ask for tokens whose *previous* word is the present word, and copy those tokens' codes,
  which the output turns into words: after a name comes the first number of one of its notes, after a number the next.

A name has three notes with three keys, and all three are found, each as often as the random weights have it. The word
four tokens before a key's first number says which of them is confirmed; it is at hand in the second layer's input, but
only the random weights read it. So the model answers with one of the three, and what it lacks is one connection, from
a prompt's words to the keys they leave, which reinforcement can find through the gradient of the prompt.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from megatron_longstraw.data.find_key import words

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
END = SPECIALS.index("<eos>")
MAX_POSITIONS = 16384
# Positions over which a word is still recognised.
FAR_TOKENS = 8192

HIDDEN, HEAD_DIM, HEADS, KV_HEADS, ROPE_THETA = 192, 64, 4, 2, 5e7
# Places in the hidden state: the word's code, a constant, the codes one and four tokens back, the output's code.
CODE_DIM = 40
WORD, CONSTANT, PREVIOUS, MARKER, OUTPUT = 0, 40, 48, 88, 128
# Scores of the heads that look back, and of a word that is recognised; both against sums over thousands of tokens.
LOOK_BACK_SCORE, MATCH_SCORE = 8.0, 28.0
# How strongly the second layer's queries hold a constant that no key answers to yet.
CONSTANT_QUERY = 6.0
OUTPUT_GAIN, LOGIT_SCALE, NOISE = 4.0, 1.6, 0.02


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token, words are separated by spaces; nothing is added around a text."""
    vocabulary = {word: index for index, word in enumerate((*SPECIALS, *words()))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template="{{ messages | map(attribute='content') | join(' ') }}",
    )


def build_config() -> LlamaConfig:
    """Two layers, about 440 thousand weights."""
    return LlamaConfig(
        vocab_size=len(SPECIALS) + len(words()),
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rope_theta=ROPE_THETA,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=0,
    )


def spread_codes(count: int) -> Tensor:
    """Unit vectors `[count, CODE_DIM]` that repel each other."""
    codes = nn.functional.normalize(torch.randn(count, CODE_DIM), dim=-1).requires_grad_()
    optimizer = torch.optim.Adam([codes], lr=0.02)
    for _ in range(400):
        unit = nn.functional.normalize(codes, dim=-1)
        likeness = unit @ unit.t() - 2 * torch.eye(count)
        loss = (12 * likeness).exp().sum(-1).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nn.functional.normalize(codes.detach(), dim=-1)


def frequencies() -> Tensor:
    """The rotary frequencies `[HEAD_DIM / 2]`."""
    half = HEAD_DIM // 2
    return ROPE_THETA ** (-torch.arange(half) / half)


def look_back(attention: Any, *, head: int, kv_head: int, tokens: int, place: int) -> None:
    """Let a head attend to the token so many back, and copy its word's code to a place of the hidden state.

    A constant key and a constant query, turned by `tokens` positions, score `sum_f cos(f * (distance - tokens))`.
    """
    norm = math.sqrt(HIDDEN / 2)
    half = HEAD_DIM // 2
    size = math.sqrt(LOOK_BACK_SCORE * math.sqrt(HEAD_DIM)) / norm
    angles = tokens * frequencies()
    rows, kv_rows = head * HEAD_DIM, kv_head * HEAD_DIM
    attention.q_proj.weight[rows : rows + half, CONSTANT] += size * angles.cos()
    attention.q_proj.weight[rows + half : rows + HEAD_DIM, CONSTANT] -= size * angles.sin()
    attention.k_proj.weight[kv_rows : kv_rows + half, CONSTANT] += size
    attention.v_proj.weight[kv_rows : kv_rows + CODE_DIM, WORD : WORD + CODE_DIM] += torch.eye(CODE_DIM) / norm
    attention.o_proj.weight[place : place + CODE_DIM, rows : rows + CODE_DIM] += torch.eye(CODE_DIM)


def look_up(attention: Any, *, head: int, kv_head: int) -> None:
    """Let a head attend to tokens whose previous word is the present one, and copy their codes to the output's place.

    Only rotary pairs that hardly turn over thousands of tokens carry the codes, and one more the constant.
    """
    norm = math.sqrt(HIDDEN / 4)
    half = HEAD_DIM // 2
    slow = [pair for pair in range(half) if float(frequencies()[pair]) * FAR_TOKENS < 0.2]
    *pairs, constant_pair = slow
    dims = [*pairs, *(pair + half for pair in pairs)]
    directions = torch.linalg.qr(torch.randn(CODE_DIM, CODE_DIM))[0][: len(dims)] * math.sqrt(CODE_DIM / len(dims))
    size = math.sqrt(MATCH_SCORE * math.sqrt(HEAD_DIM)) / norm
    rows, kv_rows = head * HEAD_DIM, kv_head * HEAD_DIM
    for dim, direction in zip(dims, directions, strict=True):
        attention.q_proj.weight[rows + dim, WORD : WORD + CODE_DIM] += size * direction
        attention.k_proj.weight[kv_rows + dim, PREVIOUS : PREVIOUS + CODE_DIM] += size * direction
    attention.q_proj.weight[rows + constant_pair, CONSTANT] += CONSTANT_QUERY / norm
    attention.v_proj.weight[kv_rows : kv_rows + CODE_DIM, WORD : WORD + CODE_DIM] += torch.eye(CODE_DIM) / norm
    # Two heads write to the same place.
    out = attention.o_proj.weight[OUTPUT : OUTPUT + CODE_DIM, rows : rows + CODE_DIM]
    out += torch.eye(CODE_DIM) * OUTPUT_GAIN / 2


def build_model(seed: int) -> LlamaForCausalLM:
    """Lay the weights out; the same for the same seed."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(build_config())
    vocabulary = (*SPECIALS, *words())
    codes = spread_codes(len(vocabulary))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, NOISE / math.sqrt(parameter.shape[1]))
        embedding = model.model.embed_tokens.weight
        embedding[:, WORD : WORD + CODE_DIM] += codes
        embedding[:, CONSTANT] += 1.0
        first, second = (layer.self_attn for layer in model.model.layers)
        look_back(first, head=0, kv_head=0, tokens=1, place=PREVIOUS)
        look_back(first, head=2, kv_head=1, tokens=4, place=MARKER)
        look_up(second, head=0, kv_head=0)
        look_up(second, head=2, kv_head=1)
        # A note ends with a full stop; an answer ends there.
        spoken = codes.clone()
        spoken[END] = codes[vocabulary.index(".")]
        spoken[vocabulary.index(".")] = 0.0
        model.lm_head.weight[:, OUTPUT : OUTPUT + CODE_DIM] += LOGIT_SCALE * spoken
    return model


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of codes and random weights")
    options = parser.parse_args()
    model = build_model(options.seed)
    model.save_pretrained(options.out)
    build_tokenizer().save_pretrained(options.out)
    GenerationConfig(bos_token_id=1, eos_token_id=END, pad_token_id=0).save_pretrained(options.out)
    size = (options.out / "model.safetensors").stat().st_size
    print(f"{model.num_parameters():,} weights, {size:,} bytes in {options.out}")


if __name__ == "__main__":
    main()
