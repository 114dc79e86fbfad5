"""Recorded rollouts, a group a line: reads them as groups, and writes a step's groups in the same form."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_longstraw.data.documents import Documents, check_mark
from megatron_longstraw.data.prompts import IDS_KEY
from megatron_longstraw.data.rows import Place, Row, open_rows
from megatron_longstraw.data.template import Encoder, check_text
from megatron_longstraw.types import Group, Prompt, Response

PROMPT_KEY = "prompt"
_GROUP_KEYS = (PROMPT_KEY, IDS_KEY, "responses")


class RecordedFile:
    """Groups by row. A line has `prompt_ids` or `prompt`, and `responses`, each with `ids` or `text`; ids win.

    Args:
        path: JSON lines.
        encoder: tokenizer and limits.
        documents: finds and reads the text files to put into a `prompt`; None where their column is like any other.

    Raises:
        InputError: the file is missing or a line of it is bad.
    """

    def __init__(self, path: str | Path, encoder: Encoder, documents: Documents | None = None) -> None:
        self._encoder = encoder
        self._documents = documents
        self._rows = open_rows(path, self._check)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> Group | None:
        """Read the group of a row, from 0; None where its prompt is too long and too long ones are dropped."""
        return self._group(*self._rows.read(row))

    def _check(self, row: Row, place: Place) -> None:
        responses = row.get("responses")
        if not isinstance(responses, list) or not responses:
            raise place.error("is not a list with a response in it", key="responses", allowed='[{"ids": [int]}, ...]')
        texts = row.get(IDS_KEY) is None or any(isinstance(r, dict) and r.get("ids") is None for r in responses)
        # Texts are long to tokenise, so their lengths are compared when they are read.
        if texts:
            self._check_prompt(row, place)
            for number, response in enumerate(responses):
                if _content(response, place, f"responses[{number}]") == "":
                    raise place.error("is empty", key=f"responses[{number}].text", allowed="at least one token")
        else:
            self._group(row, place)

    def _check_prompt(self, row: Row, place: Place) -> None:
        if row.get(IDS_KEY) is not None:
            self._encoder.ids(row[IDS_KEY], place, IDS_KEY)
        elif row.get(PROMPT_KEY) is None:
            raise place.error(f"has neither {IDS_KEY} nor {PROMPT_KEY}", allowed="one of the two")
        else:
            text = check_text(row[PROMPT_KEY], place, PROMPT_KEY)
            if self._documents and self._documents.paths(row, place):
                check_mark(text, place, PROMPT_KEY)

    def _group(self, row: Row, place: Place) -> Group | None:
        if row.get(IDS_KEY) is not None:
            ids = self._encoder.prompt(self._encoder.ids(row[IDS_KEY], place, IDS_KEY), place, IDS_KEY)
        else:
            documents = self._documents.ids(row, place) if self._documents else ()
            ids = self._encoder.prompt(row[PROMPT_KEY], place, PROMPT_KEY, documents)
        if ids is None:
            return None
        columns = {name: value for name, value in row.items() if name not in _GROUP_KEYS}
        prompt = Prompt(ids=ids, text=row.get(PROMPT_KEY), columns=columns, source=str(place))
        responses = (self._response(content, place, index) for index, content in enumerate(row["responses"]))
        return Group(prompt=prompt, responses=tuple(responses))

    def _response(self, response: Any, place: Place, index: int) -> Response:
        key = f"responses[{index}]"
        content = _content(response, place, key)
        if isinstance(content, str):
            ids = self._encoder.response(content, place, f"{key}.text")
        else:
            ids = self._encoder.ids(content, place, f"{key}.ids")
        mask = _loss_mask(response.get("loss_mask"), len(ids), place, f"{key}.loss_mask")
        return Response(
            ids=ids,
            reward=_reward(response.get("reward"), place, f"{key}.reward"),
            loss_mask=mask,
            old_logprobs=_logprobs(response.get("old_logprobs"), len(ids), mask, place, f"{key}.old_logprobs"),
            truncated=bool(response.get("truncated", False)),
        )


def write_rollouts(path: str | Path, groups: Iterable[Group], tokenizer: Any = None) -> None:
    """Write groups as recorded rollouts; a crash leaves the old file or the whole new one.

    Args:
        path: the file, usually `rollouts/step_NNNNNN.jsonl`; its directory is made.
        groups: the groups; a log-prob of the sampler stands in for a missing `old_logprobs`.
        tokenizer: adds each response's text; None leaves it out.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", errors="replace") as file:
        for group in groups:
            # Columns of a parquet file may be of types that JSON lacks, such as dates.
            file.write(json.dumps(_group_line(group, tokenizer), ensure_ascii=False, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _group_line(group: Group, tokenizer: Any) -> dict[str, object]:
    line: dict[str, object] = {} if group.prompt.text is None else {PROMPT_KEY: group.prompt.text}
    line[IDS_KEY] = group.prompt.ids.tolist()
    line["responses"] = [_response_line(response, tokenizer) for response in group.responses]
    return line | {name: value for name, value in group.prompt.columns.items() if name not in _GROUP_KEYS}


def _response_line(response: Response, tokenizer: Any) -> dict[str, object]:
    ids = response.ids.tolist()
    line: dict[str, object] = {"ids": ids, "reward": response.reward}
    if response.reward_parts:
        line["reward_parts"] = dict(response.reward_parts)
    if tokenizer is not None:
        line["text"] = tokenizer.decode(ids)
    logprobs = response.rollout_logprobs if response.old_logprobs is None else response.old_logprobs
    if logprobs is not None:
        line["old_logprobs"] = logprobs.tolist()
    if response.loss_mask is not None:
        line["loss_mask"] = response.loss_mask.int().tolist()
    if response.truncated:
        line["truncated"] = True
    return line


def _content(response: object, place: Place, key: str) -> Any:
    """A response's ids, or else its text."""
    if not isinstance(response, dict):
        raise place.error("is not a JSON object", key=key, allowed='{"ids": [int], "reward": number}')
    if response.get("ids") is not None:
        return response["ids"]
    if not isinstance(response.get("text"), str):
        raise place.error("has neither ids nor text", key=key, allowed="one of the two")
    return response["text"]


def _reward(value: object, place: Place, key: str) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, (int, float)) or math.isinf(value):
        raise place.error(f"is {value!r}", key=key, allowed="a finite number, or null where unscored")
    return float(value)


def _loss_mask(value: object, tokens: int, place: Place, key: str) -> Tensor | None:
    if value is None:
        return None
    if not isinstance(value, list) or any(item not in (0, 1) for item in value):
        raise place.error("is not a list of 0 and 1", key=key, allowed="[0|1, ...]")
    if len(value) != tokens:
        raise place.error(f"has {len(value)} entries for {tokens} tokens", key=key, allowed="one for each token")
    return torch.tensor(value, dtype=torch.bool)


def _logprobs(value: object, tokens: int, mask: Tensor | None, place: Place, key: str) -> Tensor | None:
    """`[tokens]` float64, so that nothing of what the file says is lost; a masked token's may be NaN or infinite."""
    if value is None:
        return None
    if not isinstance(value, list) or any(type(item) not in (int, float) for item in value):
        raise place.error("is not a list of numbers", key=key, allowed="[float, ...]")
    if len(value) != tokens:
        raise place.error(f"has {len(value)} entries for {tokens} tokens", key=key, allowed="one for each token")
    logprobs = torch.tensor(value, dtype=torch.float64)
    counted = logprobs if mask is None else logprobs[mask]
    if not bool(torch.isfinite(counted).all()):
        raise place.error("is not finite for a token that counts", key=key, allowed="[float, ...]")
    return logprobs
