"""The number of a text, and when it is the answer."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewards.ready_made import score

from megatron_longstraw.rewards.numbers import Number, last_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("It is 12.", 12),
        ("first 3, then 4", 4),
        ("1,234", 1234),
        ("$1,200.00", 1200),
        ("1,234,567.5 apples", Fraction("1234567.5")),
        ("1,2,3", 3),
        ("1,2345", 2345),
        ("1\u202f234\u00a0567", 1234567),
        ("1{,}234", 1234),
        (r"1,\!234", 1234),
        (r"\$1\,234", 1234),
        # Signs.
        ("-5", -5),
        ("\u22125", -5),
        ("= \u20135", -5),
        ("+5", 5),
        ("x=-5", -5),
        ("-$5", -5),
        ("$-5$", -5),
        ("10-5", 5),
        ("10 - 5", 5),
        ("pages 3\u20135", 5),
        ("(2)-5", 5),
        # Decimals and fractions.
        ("3.14.", Fraction("3.14")),
        (".5", Fraction(1, 2)),
        ("-.5", Fraction(-1, 2)),
        ("3/4", Fraction(3, 4)),
        ("\u22123/4", Fraction(-3, 4)),
        ("3 / 4", Fraction(3, 4)),
        ("1 3/4", Fraction(7, 4)),
        ("3 7/2", Fraction(7, 2)),
        ("½", Fraction(1, 2)),
        ("-1½", Fraction(-3, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"\tfrac34", Fraction(3, 4)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        ("8 but 7/0", 8),
        # Powers.
        ("1.5e3", 1500),
        ("1.5E-3", Fraction("0.0015")),
        ("1.5 \u00d7 10^3", 1500),
        (r"-1.5 \times 10^{-3}", Fraction("-0.0015")),
        (r"2 \cdot 10^2", 200),
        ("2*10**2", 200),
        ("2·10⁻²", Fraction(1, 50)),
        ("10^5", 100000),
        ("2^{10}", 1024),
        ("50 m^2", 50),
        ("50 m²", 50),
        # Digits of other scripts.
        ("١٢٣", 123),
        ("\uff11\uff12", 12),
        ("४२", 42),
        # Boxes.
        (r"\boxed{7} and then 9", 7),
        (r"\boxed{1}, no, \boxed {2}", 2),
        (r"\fbox{3} 4", 4),
        (r"\boxed{\text{a {b} 7}} 9", 7),
        (r"\boxed{\boxed{3}} 9", 3),
        (r"\boxed{x = 5}", 5),
        (r"\boxed{\frac{1}{3}}", Fraction(1, 3)),
        (r"\boxed{1\} 2} 3", 2),
        # One that is not closed was cut off.
        (r"\boxed{4} or \boxed{5", 4),
        (r"so \boxed{12", 12),
    ],
)
def test_the_last_number_is_read(text: str, value: Fraction | int) -> None:
    assert last_number(text) == Number(Fraction(value))


@pytest.mark.parametrize(
    ("text", "value"), [("50%", 50), (r"50\%", 50), ("\u22122.5 %", Fraction("-2.5")), ("\uff15\uff10\uff05", 50)]
)
def test_a_percentage_is_known_as_one(text: str, value: Fraction | int) -> None:
    assert last_number(text) == Number(Fraction(value), percent=True)


@pytest.mark.parametrize(
    "text",
    ["", "none", "-", r"\boxed{}", r"\boxed{none} 5", "7/0", "1" * 5000, "1e999999999", "9^99999", "0^-1", "m^2"],
)
def test_some_texts_have_no_number(text: str) -> None:
    assert last_number(text) is None


@pytest.mark.parametrize(
    "piece", ["1,", "1 ", "\\frac{", "\\boxed{", "1/", "10^", "1111", "1 x ", "{", "½", "^{ ", "-"]
)
def test_long_texts_are_read_in_linear_time(piece: str) -> None:
    # Quadratic time would take minutes here, and exceed the tests' limit of time.
    last_number(piece * 200_000 + r"\boxed{7}")
    last_number(piece * 200_000)


@given(
    st.integers(-(10**15), 10**15),
    st.sampled_from(["{}", "{:,}", "{}.0", "{:,}.00", "${:,}", "**{}**", r"\boxed{{{}}}", "x = {}.", "({})", "{}/1"]),
    st.sampled_from(["", "the answer is ", "no 3, ", "a\n"]),
)
def test_a_number_reads_back_however_it_is_written(number: int, form: str, before: str) -> None:
    text = before + form.format(number)
    assert last_number(text) == Number(Fraction(number))
    assert last_number(text.replace("-", "\u2212")) == Number(Fraction(number))
    assert score("numeric_answer", number, text) == [1.0]


@given(st.floats(-1e300, 1e300))
def test_a_float_reads_back(number: float) -> None:
    assert last_number(f"is {number!r}") == Number(Fraction(repr(number)))


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (5, ["5", "5.0", "It is 5.", "10/2", "$5", "500%"], ["6", "", "five", "-5", "50", "0.05%"]),
        ("-5", ["-5", "\u22125.00"], ["5"]),
        ("1,200", ["1200", "$1,200.00", "1.2e3"], ["1", "200"]),
        (0.5, ["1/2", ".5", "50%", r"\frac{1}{2}", "0.5%"], ["50", "5"]),
        ("50%", ["50%", "50", "0.5", "1/2"], ["0.5%", "5000%"]),
        ("1/3", ["0.3333333", "2/6", "33.33333333%"], ["0.333", "0.3"]),
        (1234567, ["1234567"], ["1234568"]),
        (0, ["0", "-0", "0.0"], ["0.0000001", "1"]),
        ("She has 3 * 2 = <<3*2=6>>6.\n#### 6", ["6"], ["3"]),
        (["7", 8], ["7", "8"], ["9", "7 or 9"]),
        (["no number", 8], ["8"], ["no number"]),
        (True, [], []),
    ],
)
def test_a_number_is_the_answer_however_it_is_written(answer: object, right: list[str], wrong: list[str]) -> None:
    assert score("numeric_answer", answer, *right, *wrong) == [1.0] * len(right) + [0.0] * len(wrong)


@pytest.mark.parametrize("answer", ["Paris", "", True])
def test_without_a_number_in_the_answer_nothing_is_scored(answer: object) -> None:
    assert score("numeric_answer", answer, "5", "Paris") == [None, None]


def test_a_tolerance_is_a_share_of_the_answer() -> None:
    completions = ("200", "209", "190", "211", "189.9")
    assert score("numeric_answer", 200, *completions, tolerance=0.05) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert score("numeric_answer", -200, "-209", "-211", "209", tolerance=0.05) == [1.0, 0.0, 0.0]
    assert score("numeric_answer", "1/3", "2/6", "0.3333333", tolerance=0) == [1.0, 0.0]
