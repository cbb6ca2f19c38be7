"""Student's t distribution, for any positive number of degrees of freedom."""

from __future__ import annotations

import math

# far above the rounding of float64, far below any digit that a reader sees
PRECISION = 1e-15
TINY = 1e-300
MAX_TERMS = 10_000


def upper_share(t: float, freedom: float) -> float:
    """The probability that a t variable exceeds `t`.

    Source: NIST Digital Library of Mathematical Functions, 8.17; Abramowitz and Stegun, 26.7.1.
    """
    share = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom, t * t)
    return share if t >= 0 else 1 - share


def quantile(share: float, freedom: float) -> float:
    """The value that a t variable stays below with this probability, by bisection.

    For probabilities from one half up to, and without, one.
    """
    low, high = 0.0, 1.0
    while 1 - upper_share(high, freedom) < share:
        low, high = high, 2 * high
    # each round halves the interval: after 100 it is below a rounding error of float64
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - upper_share(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, freedom: float, square: float) -> float:
    """I_x(a, b) at x = freedom / (freedom + square), which is handed in as its two parts.

    1 - x of a small square would lose its digits.
    """
    x, rest = freedom / (freedom + square), square / (freedom + square)
    # a square so small, or so large, that one of the parts is no float64 any more
    if not rest:
        return 1.0
    if math.isinf(square) or not x:
        return 0.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    front = math.exp(log_front)
    # the fraction converges fast on this side of the mean alone
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of DLMF 8.17.22, by the modified Lentz method (DLMF 3.10)."""
    c, d = 1.0, _kept_off_zero(1 - (a + b) * x / (a + 1))
    d = 1 / d
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _kept_off_zero(1 + term * d)
            c = _kept_off_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < PRECISION:
            break
    return value


def _kept_off_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
