// What a network is trained towards: the loss of a sample, and its slopes by the outputs.
#pragma once
#include "vectors.h"

struct Target {
    const Int* classes;     // or
    const float* values;    // (n, outputs)
    const float* offset;    // (n, outputs), added to the outputs; may be null
    const float* weights;   // (n,); may be null
};

// The loss of one sample of a batch of `whole`, by its share. Its outputs z, which the offset is added to, and their
// slopes d lie `apart`.
INLINE double loss_of(const Target& t, Int row, Int whole, float* z, float* d, Int outputs, Int apart) {
    const float share = (t.weights ? t.weights[row] : 1.0f) / float(whole);
    float top = -INFINITY;
    for (Int o = 0; o < outputs; o++) {
        float& v = z[o * apart];
        if (t.offset) v += t.offset[row * outputs + o];
        if (!(v <= top)) top = v;
    }
    if (!t.classes) {
        double squares = 0;
        for (Int o = 0; o < outputs; o++) {
            const float off = z[o * apart] - t.values[row * outputs + o];
            squares += double(off) * off;
            d[o * apart] = 2.0f * off / float(outputs) * share;
        }
        return share * squares / double(outputs);
    }
    float sum_of = 0;
    for (Int o = 0; o < outputs; o++) sum_of += d[o * apart] = std::exp(z[o * apart] - top);
    for (Int o = 0; o < outputs; o++) d[o * apart] *= share / sum_of;
    const Int label = t.classes[row];
    d[label * apart] -= share;
    return double(share) * (std::log(sum_of) + top - z[label * apart]);
}
