"""The page of configuration keys is that of the code."""

from megatron_longstraw.config.load import config_keys
from tools.write_config_docs import FILE, page


def test_the_page_is_up_to_date():
    assert FILE.read_text() == page()


def test_every_key_has_a_row_with_a_text():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(config_keys())
    assert all(row.rstrip("| ").split(" | ")[-1] for row in rows)
