"""Figures that several experiments draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure

# Matplotlib's tab10 in an order that keeps neighbours apart for the colour-blind.
COLOURS = (
    "#1f77b4",
    "#d95f02",
    "#2ca02c",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#17becf",
    "#bcbd22",
    "#7f7f7f",
    "#d62728",
)


def anytime(
    history: pd.DataFrame,
    bounds: Mapping[str, float],
    budget: float,
    x: str = "seconds",
) -> Figure:
    """Best step time ÷ lower bound over the search, one panel a row, a band over seeds.

    Args:
      history: columns row, method, seed, step_seconds and `x`.
      bounds: row -> lower bound in seconds.
      budget: right end of the x axis.
      x: "seconds" or "evaluations".
    """
    rows = list(dict.fromkeys(history.row))
    methods = list(dict.fromkeys(history.method))
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * lines + 0.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(lines, columns, squeeze=False)).ravel()
    handles: dict[str, Artist] = {}
    for ax, row in zip(axes, rows, strict=False):
        part = history[history.row == row]
        first = max(float(part[x].min()), budget * 1e-4)
        grid = np.geomspace(first, max(budget, first * 1.01), 160)
        for i, method in enumerate(methods):
            runs = part[part.method == method]
            if runs.empty:
                continue
            curves = (
                np.stack(
                    [
                        _best_on_grid(run[x].to_numpy(), run.step_seconds.to_numpy(), grid)
                        for _, run in runs.groupby("seed")
                    ]
                )
                / bounds[row]
            )
            curves[~np.isfinite(curves)] = np.nan
            shown = np.isfinite(curves).all(axis=0)
            colour = COLOURS[i % len(COLOURS)]
            style = "-" if i < len(COLOURS) else "--"
            (line,) = ax.plot(
                grid[shown], np.median(curves[:, shown], axis=0), style, color=colour, lw=1.6
            )
            ax.fill_between(
                grid[shown],
                curves[:, shown].min(axis=0),
                curves[:, shown].max(axis=0),
                color=colour,
                alpha=0.18,
                lw=0,
            )
            handles[method] = line
        ax.axhline(1.0, color="black", lw=0.8, ls=":")
        ax.set_xscale("log")
        ax.set_title(row, loc="left", fontsize=10)
        ax.set_xlabel("seconds" if x == "seconds" else "placements")
        ax.set_ylabel("step time ÷ lower bound")
        ax.grid(alpha=0.25)
    for ax in axes[len(rows) :]:
        ax.set_axis_off()
    columns = max(1, min(6, len(handles)))
    names = list(handles)
    figure.legend(list(handles.values()), names, loc="outside lower center", ncols=columns)
    return figure


def _best_on_grid(x: np.ndarray, best: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The step function of a monotone history, inf before its first point."""
    order = np.argsort(x, kind="stable")
    values = np.minimum.accumulate(np.concatenate([[np.inf], best[order]]))
    return values[np.searchsorted(x[order], grid, side="right")]
