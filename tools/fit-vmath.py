#!/usr/bin/env python3
"""Makes the coefficients of src/backend/cpu/kernels/vmath.h: polynomials of least maximal relative error, by Lawson's reweighted
least squares, rounded to floats and printed with the error that the rounded ones have. Needs numpy."""
import numpy as np


def fit(basis, target, x, rounds=500):
    """Coefficients c that minimise max |sum c_i basis_i(x) - target(x)|."""
    a, y, w = np.stack([b(x) for b in basis], 1), target(x), np.ones_like(x)
    for _ in range(rounds):
        s = np.sqrt(w)[:, None]
        c = np.linalg.lstsq(a * s, y * s[:, 0], rcond=None)[0]
        e = np.abs(a @ c - y)
        w *= e / e.max() + 1e-3
        w /= w.sum()
    c = np.float32(c).astype(float)
    return c, np.abs(a @ c - y).max()


def show(name, result):
    print(name, " ".join(v.hex() for v in result[0]), f"error {result[1]:.2g}")


# exp(r) = 1 + r + r^2 p(r) on |r| <= ln 2 / 2, the first two terms exact.
half = np.log(2) / 2 * 1.0005
r = np.cos(np.linspace(0, np.pi, 4001)) * half
show("exp, r^2 to r^6:", fit([lambda x, k=k: x**k * np.exp(-x) for k in range(2, 7)], lambda x: 1 - (1 + x) * np.exp(-x), r))

# tanh(x) = x + x^3 p(x^2) on |x| < 0.625.
x = np.linspace(1e-4, 0.625, 4001)
show("tanh, x^3 to x^11:", fit([lambda t, k=k: t**(2 * k + 3) / np.tanh(t) for k in range(5)], lambda t: 1 - t / np.tanh(t), x))
