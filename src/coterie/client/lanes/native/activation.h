// BatchNorm, max-pooling and ReLU in one pass, each of them if asked for: relu(max(norm(x))).
#pragma once
#include "vectors.h"

struct Norm {  // of one channel: y = a x + b, with (x - mean) * inverse the normalised x
    float a, b, mean, inverse;
};

template <bool NORM>
INLINE V value(V x, const Norm& n) { return NORM ? x * n.a + n.b : x; }

// Of two numbers the larger; not a number, if one of them is none.
INLINE I larger(V b, V a) { return (b > a) | (b != b); }

template <bool NORM, bool RELU>
static void pool_forward(const Op& op, const V* in, V* out, const Norm& n) {
    for (Int y = 0; y < op.rows; y++)
        for (Int x = 0; x < op.columns; x++) {
            V best = value<NORM>(in[y * op.pool_h * op.in.row + x * op.pool_w], n);
            for (Int i = 0; i < op.pool_h; i++)
                for (Int j = 0; j < op.pool_w; j++) {
                    const V v = value<NORM>(in[(y * op.pool_h + i) * op.in.row + x * op.pool_w + j], n);
                    best = larger(v, best) ? v : best;
                }
            out[y * op.out.row + x] = RELU ? (best < 0 ? V{} : best) : best;
        }
}

static Norm as_stored(const Op& op, const Batch& b, Int c) {
    const float inverse = float(1.0 / std::sqrt(double(b.theta[op.variance + c]) + op.epsilon));
    const float a = b.theta[op.scale + c] * inverse;
    return {a, b.theta[op.shift + c] - b.theta[op.mean + c] * a, b.theta[op.mean + c], inverse};
}

// The batch's own mean and variance, which also move the stored ones.
static Norm of_batch(const Op& op, const Batch& b, Int c, Int samples, float* stored) {
    const double many = double(samples) * op.height * op.width;
    double mean = 0, spread = 0;
    for (int pass = 0; pass < 2; pass++) {
        const V center = all(float(mean));
        double total = 0;
        for (Int k = 0; k < b.blocks; k++) {
            const I inside = b.inside(k);
            const V* in = b.at(k, op.in.at) + c * op.in.channel;
            for (Int y = 0; y < op.height; y++) {
                V row = V{};
                for (Int x = 0; x < op.width; x++) {
                    const V v = in[y * op.in.row + x] - center;
                    row += pass ? v * v : v;
                }
                total += sum(inside ? row : V{});
            }
        }
        (pass ? spread : mean) = total / many;
    }
    stored[op.mean + c] += float(op.momentum) * (float(mean) - stored[op.mean + c]);
    stored[op.variance + c] += float(op.momentum) * (float(spread * many / (many - 1)) - stored[op.variance + c]);
    const float inverse = float(1.0 / std::sqrt(spread + op.epsilon)), a = b.theta[op.scale + c] * inverse;
    return {a, b.theta[op.shift + c] - float(mean) * a, float(mean), inverse};
}

// norms: room for one of each channel, kept for the way back. stored: the model, if it is trained.
static void activation_forward(const Op& op, const Batch& b, Norm* norms, Int samples, float* stored) {
    for (Int c = 0; c < op.channels; c++) {
        if (op.norm) norms[c] = stored ? of_batch(op, b, c, samples, stored) : as_stored(op, b, c);
        for (Int k = 0; k < b.blocks; k++) {
            const V* in = b.at(k, op.in.at) + c * op.in.channel;
            V* out = b.at(k, op.out.at) + c * op.out.channel;
            if (op.norm && op.relu) pool_forward<true, true>(op, in, out, norms[c]);
            else if (op.norm) pool_forward<true, false>(op, in, out, norms[c]);
            else if (op.relu) pool_forward<false, true>(op, in, out, norms[c]);
            else pool_forward<false, false>(op, in, out, norms[c]);
        }
    }
}

// Adds (NORM) or writes what goes back to the first largest of each window; `sums`: of slopes, and of slopes times x.
template <bool NORM>
static void pool_backward(const Op& op, const V* in, const V* out, const V* slope, V* into, const Norm& n, V* sums) {
    for (Int y = 0; y < op.rows; y++)
        for (Int x = 0; x < op.columns; x++) {
            const V kept = out[y * op.out.row + x], d0 = slope[y * op.slope_out.row + x];
            const V d = op.relu ? (kept > 0 ? d0 : V{}) : d0;
            V source = in[y * op.pool_h * op.in.row + x * op.pool_w], best = value<NORM>(source, n);
            I which = I{};
            for (Int i = 0; i < op.pool_h; i++)
                for (Int j = 0; j < op.pool_w; j++) {
                    const V from = in[(y * op.pool_h + i) * op.in.row + x * op.pool_w + j], v = value<NORM>(from, n);
                    const I more = larger(v, best);
                    best = more ? v : best;
                    if (NORM) source = more ? from : source;
                    which = more ? I{} + int32_t(i * op.pool_w + j) : which;
                }
            if (NORM) sums[0] += d, sums[1] += d * ((source - n.mean) * n.inverse);
            for (Int i = 0; i < op.pool_h; i++)
                for (Int j = 0; j < op.pool_w; j++)
                    into[(y * op.pool_h + i) * op.slope_in.row + x * op.pool_w + j] =
                        which == I{} + int32_t(i * op.pool_w + j) ? d : V{};
        }
}

// From slopes by the normalised and scaled values to those by what was normalised.
static void norm_backward(const Op& op, const Batch& b, const Norm& n, Int c, double by_shift, double by_scale, Int samples) {
    const double many = double(samples) * op.height * op.width;
    const V first = all(float(by_shift / many)), second = all(float(by_scale / many));
    for (Int k = 0; k < b.blocks; k++) {
        const I inside = b.inside(k);
        const V* in = b.at(k, op.in.at) + c * op.in.channel;
        V* into = b.at(k, op.slope_in.at) + c * op.slope_in.channel;
        for (Int y = 0; y < op.height; y++)
            for (Int x = 0; x < op.width; x++) {
                V& d = into[y * op.slope_in.row + x];
                const bool pooled = y < op.rows * op.pool_h && x < op.columns * op.pool_w;
                const V v = (in[y * op.in.row + x] - n.mean) * n.inverse;
                const V all_of_it = ((pooled ? d : V{}) - first - v * second) * n.a;
                d = inside ? all_of_it : V{};
            }
    }
}

static void activation_backward(const Op& op, const Batch& b, const Norm* norms, Int samples) {
    for (Int c = 0; c < op.channels; c++) {
        double by_shift = 0, by_scale = 0;
        for (Int k = 0; k < b.blocks; k++) {
            V sums[2] = {V{}, V{}};
            const V *in = b.at(k, op.in.at) + c * op.in.channel, *out = b.at(k, op.out.at) + c * op.out.channel;
            const V* slope = b.at(k, op.slope_out.at) + c * op.slope_out.channel;
            V* into = b.at(k, op.slope_in.at) + c * op.slope_in.channel;
            if (op.norm) pool_backward<true>(op, in, out, slope, into, norms[c], sums);
            else pool_backward<false>(op, in, out, slope, into, Norm{}, sums);
            by_shift += sum(sums[0]);
            by_scale += sum(sums[1]);
        }
        if (!op.norm) continue;
        b.grad[op.shift + c] += float(by_shift);
        b.grad[op.scale + c] += float(by_scale);
        norm_backward(op, b, norms[c], c, by_shift, by_scale, samples);
    }
}
