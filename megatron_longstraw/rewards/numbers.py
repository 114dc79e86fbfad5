"""The reward for numbers, and how a number is read out of text."""

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards.answers import ANSWER, Completion, best_over_answers

# Of the answer: how far a number may be from it, unless both are whole.
TOLERANCE = 1e-6
# Longer numbers and exponents are not read: nobody means them, and exact arithmetic with them takes for ever.
MOST_DIGITS = 1000


def numeric_answer(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer_key: str = ANSWER,
    tolerance: float | None = None,
    **columns: object,
) -> list[float | None]:
    r"""Give 1 where the completion's number equals an accepted answer, and 0 elsewhere.

    The number of a text is the last one in its last `\boxed{…}`, or without that the last one of all; what is read says
    `last_number`. A percentage equals another by its number, and a plain number by its number or its hundredth.

    Args:
        prompts: unused.
        completions: texts or chats.
        completion_ids: unused.
        answer_key: the column of answers, as numbers or texts.
        tolerance: how far the number may be from the answer, as a share of the answer; null: two whole numbers must be
            equal, others may differ by 1e-6 of the answer.
        columns: the row's columns.

    Returns:
        1 or 0 for each; None where there is no number in any of the row's answers.
    """
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise InputError(f"needs a tolerance >= 0, which is {tolerance}")

    def equal(given: str, right: str) -> float | None:
        answer, number = last_number(right), last_number(given)
        if answer is None:
            return None
        return float(number is not None and _equal(number, answer, tolerance))

    return best_over_answers(completions, columns, answer_key, equal)


@dataclass(frozen=True)
class Number:
    """A number as it is written.

    Args:
        value: exactly; of a percentage what stands before the sign, so 50 for 50%.
        percent: it is a percentage.
    """

    value: Fraction
    percent: bool = False


def last_number(text: str) -> Number | None:
    r"""Read the last number of a text, or of its last `\boxed{…}` where it has one; None without any.

    Read are signs (U+2212 too), decimal points, thousands in groups of three (`1,200`, `1{,}200`), currency signs,
    `50%`, `3/4`, `1 3/4`, `½`, `\frac{3}{4}`, `1.5e3`, `1.5 \times 10^{3}`, `2^{10}`, and digits of any script. A minus
    after a digit, a letter or a closing bracket is no sign: `10-5` ends with 5. A comma is never a decimal point, and
    an exponent alone, as in `m^2`, is no number.
    """
    boxed = _last_boxed(text)
    last = None
    for match in _NUMBER.finditer(_plain(_around_last_digit(text if boxed is None else boxed))):
        number = _read(match)
        last = last if number is None else number
    return last


def _equal(number: Number, answer: Number, tolerance: float | None) -> bool:
    if number.percent == answer.percent:
        return _near(number.value, answer.value, tolerance)
    # One of the two is written in percent, and the other may be the same number or its hundredth.
    shares = (number.value / 100, answer.value) if number.percent else (number.value, answer.value / 100)
    return _near(number.value, answer.value, tolerance) or _near(*shares, tolerance)


def _near(value: Fraction, answer: Fraction, tolerance: float | None) -> bool:
    if tolerance is None:
        if value.denominator == answer.denominator == 1:
            return value == answer
        tolerance = TOLERANCE
    return abs(value - answer) <= Fraction(tolerance) * abs(answer)


_BOX_OR_BRACE = re.compile(r"\\[{}]|(?P<open>(?P<boxed>\\f?boxed\s*)?\{)|\}")


def _last_boxed(text: str) -> str | None:
    r"""The content of the `\boxed{…}` that is closed last, None where none is."""
    if "boxed" not in text:
        return None
    content = None
    opened: list[int | None] = []
    for match in _BOX_OR_BRACE.finditer(text):
        if match["open"]:
            opened.append(match.end() if match["boxed"] else None)
        elif match[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                content = text[start : match.start()]
    return content


# A digit of any script, a superscript included, or a vulgar fraction.
_UP_TO_LAST_DIGIT = re.compile(r".*[\d⁰¹²³⁴-⁹¼-¾⅐-⅞]", re.DOTALL)


def _around_last_digit(text: str) -> str:
    """The part of a long text in which its last number stands."""
    match = _UP_TO_LAST_DIGIT.match(text)
    return "" if match is None else text[max(0, match.end() - 2 * MOST_DIGITS) : match.end() + 10]


_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
# Hyphen, figure dash, en dash and minus; fraction slash and division slash; signs of multiplication.
_SIGNS = str.maketrans("\u2010\u2012\u2013\u2212\u2044\u2215\u00d7\u00b7\u22c5", "----//***")

_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\([$%])", r"\1"),
        (r"\\(?:times|cdot)(?![A-Za-z])", "*"),
        # A space keeps 1\frac{1}{2} from becoming 11/2.
        (r"(?<=\d)(?=\\[dt]?frac)", " "),
        (r"\\[dt]?frac\s*\{\s*([^{}]*?)\s*\}\s*\{\s*([^{}]*?)\s*\}", r"\1/\2"),
        (r"\\[dt]?frac\s*(\d)\s*(\d)", r"\1/\2"),
        (r"\^\s*\{\s*([+-]?\d++)\s*\}", r"^\1"),
    )
)


def _plain(text: str) -> str:
    """The text with the many ways of writing a number reduced to a few, in ASCII digits."""
    text = re.sub(r"[⁰¹²³⁴-⁹⁺⁻]+", lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text)
    # A space keeps 1½ from becoming 11/2.
    text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text)
    # Spaces, braces and LaTeX between groups of three digits.
    text = re.sub(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\{,\}|,\\!|\\,)(?=\d{3}(?!\d))", ",", text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    text = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


_DIGITS = r"(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.\d++)?+|\.\d++"
_NUMBER = re.compile(
    rf"""
    (?:(?<![\w)\]}}%])(?P<sign>[+-])[$€£¥₹]?)?
    (?:
        (?:(?P<mantissa>{_DIGITS})\s*[*x]\s*(?=10\s*[\^*]))?(?P<base>{_DIGITS})(?:[ ]*\^[ ]*|\*\*)(?P<power>[+-]?\d++)
      | (?P<significand>{_DIGITS})[eE](?P<exponent>[+-]?\d++)
      | (?:(?P<whole>\d++)[ ])?(?P<numerator>{_DIGITS})\s*/\s*(?P<denominator>{_DIGITS})
      | (?P<plain>{_DIGITS})
    )
    (?P<percent>\s?%)?
    | \^\s*[+-]?\d++
    """,
    re.VERBOSE,
)


def _read(match: re.Match[str]) -> Number | None:
    """The number of a match; None where it is an exponent alone, too long, or divided by 0."""
    if len(match[0]) > MOST_DIGITS or match[0].startswith("^"):
        return None
    value: Fraction | None
    if match["power"] is not None:
        value = _power(match["base"], match["power"], match["mantissa"] or "1")
    elif match["exponent"] is not None:
        value = _power("10", match["exponent"], match["significand"])
    elif match["denominator"] is not None:
        value = _quotient(match["numerator"], match["denominator"], match["whole"] or "0")
    else:
        value = _fraction(match["plain"])
    if value is None:
        return None
    return Number(-value if match["sign"] == "-" else value, percent=match["percent"] is not None)


def _power(base: str, exponent: str, factor: str) -> Fraction | None:
    if len(exponent) > len(str(MOST_DIGITS)) or len(base) * abs(int(exponent)) > 2 * MOST_DIGITS:
        return None
    if not _fraction(base):
        return None
    return _fraction(factor) * _fraction(base) ** int(exponent)


def _quotient(numerator: str, denominator: str, whole: str) -> Fraction | None:
    if not _fraction(denominator):
        return None
    value = _fraction(numerator) / _fraction(denominator)
    # A mixed number has a proper fraction; in 3 7/2 the 3 stands by itself.
    return value + int(whole) if value < 1 else value


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))
