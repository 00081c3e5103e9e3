"""Sizes of layers that tests and benchmarks share."""

from typing import NamedTuple


class MatmulShape(NamedTuple):
    """A product of rows and a kernel.

    Attributes:
      rows: rows for each kernel.
      k: length of the contraction.
      n: columns of the kernel.
    """

    rows: int
    k: int
    n: int


class ConvShape(NamedTuple):
    """A convolution of square images with square windows.

    Attributes:
      image: height and width of an image.
      channels: channels of an image.
      size: height and width of the window.
      stride: pixels from one output to the next.
      features: channels of the output.
      padding: "SAME" or "VALID".
    """

    image: int
    channels: int
    size: int
    stride: int
    features: int
    padding: str


MATMULS = {
    "deep_ga_large_hidden": MatmulShape(1, 7744, 512),
    "deep_ga_large_output": MatmulShape(1, 512, 18),
    "deep_ga_small_hidden": MatmulShape(1, 3872, 256),
    "deep_ga_large_patches_0": MatmulShape(441, 256, 32),
    "deep_ga_large_patches_1": MatmulShape(121, 512, 64),
    "deep_ga_large_patches_2": MatmulShape(121, 576, 64),
    "mlp_hidden": MatmulShape(1, 64, 64),
    "tiles": MatmulShape(3, 96, 256),
    "half_a_tile": MatmulShape(70, 128, 48),
    "rows": MatmulShape(5, 704, 16),
    "prime": MatmulShape(1, 769, 7),
    "scalar": MatmulShape(1, 1, 1),
}
"""Dense layers, for one observation of each network unless `rows` says otherwise, and convolutions of patches."""

CONVS = {
    "deep_ga_large_0": ConvShape(84, 4, 8, 4, 32, "SAME"),
    "deep_ga_large_1": ConvShape(21, 32, 4, 2, 64, "SAME"),
    "deep_ga_large_2": ConvShape(11, 64, 3, 1, 64, "SAME"),
    "deep_ga_small_0": ConvShape(84, 4, 8, 4, 16, "SAME"),
    "deep_ga_small_1": ConvShape(21, 16, 4, 2, 32, "SAME"),
    "stride_beyond_size": ConvShape(9, 3, 2, 3, 5, "SAME"),
    "size_no_multiple_of_stride": ConvShape(20, 4, 3, 2, 5, "VALID"),
    "pixels_left_over": ConvShape(23, 3, 4, 2, 5, "VALID"),
    "pointwise": ConvShape(5, 3, 1, 1, 2, "VALID"),
}
"""Convolutions of Atari networks, and unusual ones."""
