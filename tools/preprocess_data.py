"""Writes token ids for reuse: texts as Megatron's indexed datasets, and prompts with their ids.

    python tools/preprocess_data.py --input corpus.jsonl notes.txt --hf models/smollm2 --output-prefix data/corpus \\
        --append-eod
    python tools/preprocess_data.py --input prompts.jsonl --hf models/smollm2 --prompt-ids-out data/prompts.parquet

The first writes `data/corpus_text_document.bin` and `.idx`. An input is JSON lines (`.jsonl`, `.json`), parquet
(`.parquet`), or else a plain text file, which is one document. The column named by `--documents-key` lists text files,
each a document. Texts are tokenised with nothing added to them but the end token, if asked for.

The second writes the prompts as training would tokenise them, chat template and documents included, in a column
`prompt_ids`, with all other columns but the documents'; `data.prompts` reads it without a tokenizer.

Ids of text files are kept in the token cache, where training finds them too.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from megatron_longstraw.data.documents import Documents
from megatron_longstraw.data.prompts import IDS_KEY, PromptFile
from megatron_longstraw.data.rows import Place, Row, RowFile, open_rows
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.data.token_cache import TokenCache
from megatron_longstraw.data.windows import Ids, token_ids
from megatron_longstraw.errors import InputError, first_line
from megatron_longstraw.model.tokenizer import read_tokenizer

TEXT = "text"
ROW_FILES = (".jsonl", ".json", ".parquet")
# A row group of prompts holds about this many tokens; training holds one group at a time.
GROUP_TOKENS = 1 << 22
LINE_S = 10.0


class Shown:
    """Progress on standard error, of rows and of a long text: bars on a terminal, or else a line now and then."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.display = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._rows = self.display.add_task("rows", total=None)
        self._characters = self.display.add_task("characters of a text", visible=False)
        self._last_line = time.monotonic()

    def rows(self, done: int, total: int) -> None:
        """Tell how many rows are done."""
        self.display.update(self._rows, completed=done, total=total)
        self._line("rows", done, total)

    def characters(self, done: int, total: int) -> None:
        """Tell how much of a text is done."""
        self.display.update(self._characters, completed=done, total=total, visible=done < total)
        self._line("characters of a text", done, total)

    def _line(self, name: str, done: int, total: int) -> None:
        if self.display.disable and time.monotonic() - self._last_line > LINE_S:
            self._last_line = time.monotonic()
            print(f"{name}: {done:,} of {total:,}", file=sys.stderr)


class Texts:
    """The texts of files, column by column.

    Args:
        paths: the files.
        keys: the columns; a plain text file has `text` alone.
        tokens: gives the ids of text files.
        documents: finds the text files that rows name.
        documents_key: the column that lists them.
        tokenizer: makes the ids of texts in rows.
        shown: told of progress.

    Raises:
        InputError: a file is missing, or a row lacks one of the columns.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        keys: Sequence[str],
        *,
        tokens: TokenCache,
        documents: Documents,
        documents_key: str,
        tokenizer: Any,
        shown: Shown,
    ) -> None:
        self._keys, self._tokens, self._documents, self._documents_key = keys, tokens, documents, documents_key
        self._tokenizer, self._shown = tokenizer, shown
        self._files: list[tuple[Path, RowFile | None]] = []
        for path in paths:
            if path.suffix in ROW_FILES:
                self._files.append((path, open_rows(path, self._check)))
            elif not path.is_file():
                raise InputError("there is no such file", file=path)
            elif list(keys) != [TEXT]:
                raise InputError(f"{path} is a plain text, without columns", key="--json-keys", allowed=TEXT)
            else:
                self._files.append((path, None))

    def ids(self) -> Iterator[tuple[str, Ids]]:
        """Each document's column and ids, in the order of the files and their rows."""
        total = sum(1 if rows is None else len(rows) for _, rows in self._files)
        done = 0
        for path, rows in self._files:
            for row in range(1 if rows is None else len(rows)):
                self._shown.rows(done, total)
                if rows is None:
                    yield TEXT, self._file(path)
                else:
                    content, place = rows.read(row)
                    for key in self._keys:
                        yield from ((key, ids) for ids in self._row(content, key, place))
                done += 1
        self._shown.rows(done, total)

    def _check(self, row: Row, place: Place) -> None:
        for key in self._keys:
            if key not in row:
                columns = ", ".join(row) or "none"
                raise place.error(f"has no {key}; its columns are {columns}", allowed="--json-keys names others")
            if key == self._documents_key:
                self._documents.paths(row, place)
            elif row[key] is not None and not isinstance(row[key], str):
                raise place.error("is not a text", key=key, allowed="a text, or null")

    def _row(self, row: Row, key: str, place: Place) -> list[Ids]:
        if key == self._documents_key:
            return self._documents.ids(row, place)
        try:
            return [token_ids(self._tokenizer, row[key] or "", self._shown.characters)]
        # Half of a surrogate pair is a text of Python's, but not of a tokenizer.
        except TypeError as error:
            raise place.error(f"cannot be tokenised: {first_line(error)}", key=key) from error

    def _file(self, path: Path) -> Ids:
        try:
            return self._tokens.ids(path)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=path) from error
        except UnicodeDecodeError as error:
            raise InputError(f"is not UTF-8: {error.reason} at byte {error.start}", file=path) from error


@contextmanager
def whole_files(*paths: Path) -> Iterator[list[Path]]:
    """Give a name aside for each file; they are renamed at the end, or removed when something fails."""
    partial = [path.with_name(f"{path.name}.partial") for path in paths]
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            for aside, path in zip(partial, paths, strict=True):
                aside.replace(path)
        finally:
            for aside in partial:
                aside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {first_line(error)}", file=paths[0]) from error


def write_indexed(texts: Texts, keys: Sequence[str], prefix: str, *, vocabulary: int, end: int | None) -> None:
    """Write a dataset for each column: a document a text, of one sequence; empty texts are left out.

    Args:
        texts: the texts.
        keys: the columns.
        prefix: what the names of the files begin with.
        vocabulary: ids are below it; decides between uint16 and int32.
        end: the id to put after each document, or None.
    """
    with warnings.catch_warnings():
        # Megatron says at import which of its optional parts are missing.
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    dtype = DType.optimal_dtype(vocabulary)
    names = {key: (Path(f"{prefix}_{key}_document.bin"), Path(f"{prefix}_{key}_document.idx")) for key in keys}
    counts = {key: [0, 0, 0] for key in keys}
    with ExitStack() as stack:
        asides = {key: stack.enter_context(whole_files(*names[key])) for key in keys}
        builders = {key: IndexedDatasetBuilder(str(asides[key][0]), dtype=dtype) for key in keys}
        for builder in builders.values():
            stack.callback(builder.data_file.close)
        for key, ids in texts.ids():
            counts[key][2] += not len(ids)
            if len(ids):
                document = ids if end is None else np.append(ids, np.uint32(end))
                builders[key].add_document(document, [len(document)])
                counts[key][0] += 1
                counts[key][1] += len(document)
        for key, builder in builders.items():
            if not counts[key][0]:
                raise InputError("holds no text", key=key)
            builder.finalize(str(asides[key][1]))
    for key, (documents, tokens, empty) in counts.items():
        left_out = f"; {empty:,} empty ones left out" if empty else ""
        print(f"{documents:,} documents, {tokens:,} tokens in {names[key][0]} and .idx{left_out}")


def write_prompts(prompts: Sequence[PromptFile], others: pa.Table, out: Path, shown: Shown) -> None:
    """Write prompts' ids beside their other columns.

    Args:
        prompts: the files.
        others: the other columns of all their rows.
        out: the parquet file.
        shown: told of progress.
    """
    rows = sum(len(file) for file in prompts)
    schema = pa.schema([*others.schema, (IDS_KEY, pa.list_(pa.int32()))])
    written = tokens = 0
    with whole_files(out) as (aside,), parquet.ParquetWriter(aside, schema) as writer:
        group: list[Any] = []
        for index, prompt in enumerate(file.read(row) for file in prompts for row in range(len(file))):
            shown.rows(index, rows)
            # Without a limit none is dropped.
            assert prompt is not None
            group.append(prompt.ids.numpy().astype(np.int32))
            if sum(len(ids) for ids in group) >= GROUP_TOKENS or index + 1 == rows:
                part = others.slice(written, len(group))
                columns = [*part.columns, pa.array(group, type=pa.list_(pa.int32()))]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=len(group))
                written += len(group)
                tokens += sum(len(ids) for ids in group)
                group = []
        shown.rows(rows, rows)
    print(f"{rows:,} prompts, {tokens:,} tokens in {out}")


def other_columns(paths: Sequence[Path], left_out: Sequence[str], out: Path) -> pa.Table:
    """The columns of rows but some, as one table."""
    contents: list[Row] = []
    for path in paths:
        rows = open_rows(path, lambda row, place: None)
        contents.extend(rows.read(row)[0] for row in range(len(rows)))
    names = [name for name in dict.fromkeys(name for row in contents for name in row) if name not in left_out]
    try:
        return pa.table({name: pa.array([row.get(name) for row in contents]) for name in names})
    except pa.ArrowException as error:
        problem = f"a column cannot be stored as parquet: {first_line(error)}"
        raise InputError(problem, file=out, allowed="values of one type in each column") from error


def run(options: argparse.Namespace, shown: Shown) -> None:
    """Write what was asked for."""
    if not options.hf.is_dir():
        raise InputError(f"there is no folder {options.hf}", key="--hf", allowed="a Hugging Face folder")
    tokenizer = read_tokenizer(options.hf)
    if tokenizer is None:
        raise InputError(f"{options.hf} has no tokenizer", key="--hf")
    if options.append_eod and tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no end token", key="--append-eod")
    tokens = TokenCache(tokenizer, options.token_cache, shown.characters)
    documents = Documents(tokens, key=options.documents_key, anywhere=options.documents_anywhere)
    if options.output_prefix:
        texts = Texts(
            options.input,
            options.json_keys,
            tokens=tokens,
            documents=documents,
            documents_key=options.documents_key,
            tokenizer=tokenizer,
            shown=shown,
        )
        end = tokenizer.eos_token_id if options.append_eod else None
        write_indexed(texts, options.json_keys, options.output_prefix, vocabulary=len(tokenizer), end=end)
    if options.prompt_ids_out:
        encoder = Encoder(tokenizer, len(tokenizer))
        prompts = [PromptFile(path, encoder, options.prompt_key, documents) for path in options.input]
        others = other_columns(options.input, (IDS_KEY, options.documents_key), options.prompt_ids_out)
        write_prompts(prompts, others, options.prompt_ids_out, shown)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog=Path(__file__).name, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="JSON lines, parquet or plain text files")
    parser.add_argument("--hf", "--tokenizer-model", type=Path, required=True, help="a folder with a tokenizer")
    parser.add_argument("--output-prefix", help="write datasets PREFIX_KEY_document.bin and .idx")
    parser.add_argument("--json-keys", nargs="+", default=[TEXT], help="columns of texts, a dataset each")
    parser.add_argument("--append-eod", action="store_true", help="put the tokenizer's end token after each document")
    parser.add_argument("--prompt-ids-out", type=Path, help="write prompts with their ids to this parquet file")
    parser.add_argument("--prompt-key", default="prompt", help="as data.prompt_key")
    parser.add_argument("--documents-key", default="documents", help="as data.documents_key")
    parser.add_argument("--documents-anywhere", action="store_true", help="as data.documents_anywhere")
    parser.add_argument("--token-cache", help="as data.token_cache")
    options = parser.parse_args(arguments)
    out = options.prompt_ids_out
    if not options.output_prefix and not out:
        parser.error("nothing to write (allowed: --output-prefix, --prompt-ids-out, or both)")
    if out and out.suffix != ".parquet":
        parser.error(f"--prompt-ids-out: {out} (allowed: a name that ends in .parquet)")
    if out and any(path.suffix not in ROW_FILES for path in options.input):
        parser.error(f"--prompt-ids-out: a plain text is no prompt (allowed: --input of {', '.join(ROW_FILES)})")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit status is 2 for bad usage or bad input."""
    options = parse(arguments)
    shown = Shown()
    try:
        with shown.display:
            run(options, shown)
    except InputError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
