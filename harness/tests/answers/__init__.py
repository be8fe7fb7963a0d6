"""Answers to the assignments, for tests of their points: cheats, honest answers in various styles, and partial ones.
Each is text made from the course's starter or reference answer. A module for each assignment has

  CHEATS    below the pass mark
  HONEST    with nearly all points
  ORDERED   in the order in which a teacher would place them, the best last
"""

from . import (
    bug_hunt,
    causal,
    cp_async,
    double_buffered_mma,
    gradients,
    ldmatrix,
    mma,
    online_softmax,
    overlapped_softmax,
    puzzles,
    split_kv,
    swizzle,
    tiled,
)  # fmt: skip

MODULES = {
    module.NAME: module
    for module in (
        puzzles, online_softmax, tiled, mma, cp_async, swizzle, ldmatrix, bug_hunt, double_buffered_mma,
        overlapped_softmax, causal, split_kv, gradients,
    )
}  # fmt: skip
