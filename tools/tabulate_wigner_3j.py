"""Write the shipped table of Wigner 3j symbols of real spherical harmonics, as exact numbers.

python tools/tabulate_wigner_3j.py > src/sigmaff/backbones/wigner_3j.txt
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

from sympy import Expr, I, Rational, expand, sign, sqrt
from sympy.physics.wigner import wigner_3j

L_MAX = 3

HEADER = """\
# Wigner 3j symbols of real spherical harmonics (tools/tabulate_wigner_3j.py); symbols not listed are 0.
# l1 l2 l3 m1 m2 m3, and the square of the symbol with the symbol's sign. Other orders of l1 l2 l3 follow:
# exchanging two columns multiplies the symbol by (-1)^(l1 + l2 + l3)."""


def components(m: int) -> Iterator[tuple[int, Expr]]:
    """The complex harmonics in a real one: their orders and amplitudes.

    √2 Y_m = (−1)ᵐ Y_m + Y_−m ∝ cos mφ and √2 Y_−m = ((−1)ᵐ Y_m − Y_−m) / i ∝ sin mφ for m > 0, without the phase of
    Condon and Shortley. The polar axis is y, and φ goes from z to x: for l = 1 the harmonics are x, y, z.
    """
    if m == 0:
        yield 0, Rational(1)
    else:
        n, phase = abs(m), Rational(1) if m > 0 else -I
        yield n, phase * (-1) ** n / sqrt(2)
        yield -n, phase * (1 if m > 0 else -1) / sqrt(2)


def real_symbol(degrees: tuple[int, ...], orders: tuple[int, ...]) -> Expr:
    """(−i)^(l₁ + l₂ + l₃) Σ (l₁ l₂ l₃; m₁ m₂ m₃) times the amplitudes of the complex harmonics: a real number."""
    total = Rational(0)
    for (m_1, a_1), (m_2, a_2), (m_3, a_3) in product(*map(components, orders)):
        if m_1 + m_2 + m_3 == 0:
            total += a_1 * a_2 * a_3 * wigner_3j(*degrees, m_1, m_2, m_3)
    return expand((-I) ** sum(degrees) * total)


def main() -> None:
    print(HEADER)
    for degrees in combinations_with_replacement(range(L_MAX + 1), 3):
        if degrees[2] > degrees[0] + degrees[1]:
            continue
        for orders in product(*(range(-degree, degree + 1) for degree in degrees)):
            value = real_symbol(degrees, orders)
            if value != 0:
                print(*degrees, *orders, sign(value) * expand(value**2))


if __name__ == "__main__":
    main()
