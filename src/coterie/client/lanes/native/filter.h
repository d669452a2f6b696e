// What both ways of computing a convolution share.
#pragma once
#include "vectors.h"

struct Filter {  // a convolution as this file computes it: of an image, or of slopes with the filters mirrored
    Int channels, height, width, filters, rows, columns, kernel_h, kernel_w, pad_h, pad_w;
};

INLINE Int tile_of(Int left) { return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

// The weights of a filter; mirrored, for the slope of the input: filters and channels swap places.
struct Weights {
    const Op& op;
    const float* w;
    bool mirrored;

    float at(Int filter, Int channel, Int ky, Int kx) const {
        return mirrored ? w[channel * op.by_filter + filter * op.by_channel + (op.kernel_h - 1 - ky) * op.by_row +
                            (op.kernel_w - 1 - kx) * op.by_column]
                        : w[filter * op.by_filter + channel * op.by_channel + ky * op.by_row + kx * op.by_column];
    }
};

INLINE Filter ahead(const Op& op) {
    return {op.channels, op.height, op.width, op.filters, op.rows, op.columns,
            op.kernel_h, op.kernel_w, op.pad_h, op.pad_w};
}

INLINE Filter back(const Op& op) {
    return {op.filters, op.rows, op.columns, op.channels, op.height, op.width,
            op.kernel_h, op.kernel_w, op.kernel_h - 1 - op.pad_h, op.kernel_w - 1 - op.pad_w};
}
