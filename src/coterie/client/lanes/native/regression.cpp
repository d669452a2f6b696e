// All steps of plain gradient descent on a single linear layer: softmax regression, or least squares. The lanes are
// inputs, so that weights and samples are read as they lie: rows of a multiple of LANES numbers.
#include "target.h"

constexpr int TILE = MANY_REGISTERS ? 5 : 3;  // samples by outputs whose sums are formed at once

struct Layer {
    float* weights;  // (outputs, stride)
    float* bias;     // (outputs,), or null
    Int outputs, stride;
};

struct Regression {
    Layer layer;    // as it starts, and as it ends
    Layer anchor;   // null weights: none
    double keep, length;
    const float* x;     // (n, stride)
    Target target;
    const Int *rows, *ends;
    Int steps, largest;
    float* room;        // 2 * largest * outputs
    const float** taken;  // largest
};

// The outputs of S samples, for N outputs from `o` on.
template <int S, int N>
INLINE void dot_products(const Layer& l, const float* const* x, Int o, float* const* z) {
    V acc[S][N];
    for (int s = 0; s < S; s++)
        for (int j = 0; j < N; j++) acc[s][j] = V{};
    for (Int i = 0; i < l.stride; i += LANES)
        for (int j = 0; j < N; j++) {
            const V w = *reinterpret_cast<const Loose*>(l.weights + (o + j) * l.stride + i);
            for (int s = 0; s < S; s++) acc[s][j] += w * *reinterpret_cast<const Loose*>(x[s] + i);
        }
    for (int s = 0; s < S; s++)
        for (int j = 0; j < N; j++) z[s][o + j] = sum(acc[s][j]) + (l.bias ? l.bias[o + j] : 0.0f);
}

template <int S>
static void outputs_of_samples(const Layer& l, const float* const* x, float* const* z) {
    Int o = 0;
    for (; o + TILE <= l.outputs; o += TILE) dot_products<S, TILE>(l, x, o, z);
    for (; o + 2 <= l.outputs; o += 2) dot_products<S, 2>(l, x, o, z);
    for (; o < l.outputs; o++) dot_products<S, 1>(l, x, o, z);
}

// weights -> anchor + keep (weights - anchor) - the sum of slopes times samples, for N outputs and M vectors of inputs.
template <int N, int M>
INLINE void moved(const Layer& l, const float* anchor, float keep, const float* const* x, const float* d, Int samples, Int o, Int i) {
    V acc[N][M];
    for (int j = 0; j < N; j++)
        for (int m = 0; m < M; m++) {
            const Int at = (o + j) * l.stride + i + m * LANES;
            acc[j][m] = *reinterpret_cast<const Loose*>(l.weights + at);
            if (!anchor) continue;
            const V to = *reinterpret_cast<const Loose*>(anchor + at);
            acc[j][m] = to + keep * (acc[j][m] - to);
        }
    for (Int s = 0; s < samples; s++)
        for (int m = 0; m < M; m++) {
            const V a = *reinterpret_cast<const Loose*>(x[s] + i + m * LANES);
            for (int j = 0; j < N; j++) acc[j][m] -= a * d[s * l.outputs + o + j];
        }
    for (int j = 0; j < N; j++)
        for (int m = 0; m < M; m++) *reinterpret_cast<Loose*>(l.weights + (o + j) * l.stride + i + m * LANES) = acc[j][m];
}

template <int N>
static void move_outputs(const Layer& l, const float* anchor, float keep, const float* const* x, const float* d, Int samples, Int o) {
    constexpr int M = MANY_REGISTERS ? 4 : 2;
    Int i = 0;
    for (; i + M * LANES <= l.stride; i += M * LANES) moved<N, M>(l, anchor, keep, x, d, samples, o, i);
    for (; i < l.stride; i += LANES) moved<N, 1>(l, anchor, keep, x, d, samples, o, i);
}

extern "C" {

Int lanes() { return LANES; }

// All steps, each on the samples rows[ends[t - 1]] to rows[ends[t]]: the weights go to anchor + keep (weights - anchor)
// - length times the gradient. Returns the mean of the steps' losses.
double regression(const Regression* what) {
    const Regression& r = *what;
    const Layer& l = r.layer;
    const float* const anchor = r.anchor.weights;
    const float keep = float(r.keep), length = float(r.length);
    double total = 0;
    for (Int t = 0; t < r.steps; t++) {
        const Int begin = t ? r.ends[t - 1] : 0, samples = r.ends[t] - begin;
        float *z = r.room, *d = r.room + r.largest * l.outputs;
        float* into[TILE];
        for (Int s = 0; s < samples; s++) r.taken[s] = r.x + r.rows[begin + s] * l.stride;
        for (Int s = 0; s < samples;) {
            const Int left = samples - s, many = left >= TILE ? TILE : left >= 2 ? 2 : 1;
            for (Int j = 0; j < many; j++) into[j] = z + (s + j) * l.outputs;
            many == TILE ? outputs_of_samples<TILE>(l, r.taken + s, into)
            : many == 2  ? outputs_of_samples<2>(l, r.taken + s, into)
                         : outputs_of_samples<1>(l, r.taken + s, into);
            s += many;
        }
        for (Int s = 0; s < samples; s++)
            total += loss_of(r.target, r.rows[begin + s], samples, z + s * l.outputs, d + s * l.outputs, l.outputs, 1);
        for (Int i = 0; i < samples * l.outputs; i++) d[i] *= length;
        Int o = 0;
        for (; o + TILE <= l.outputs; o += TILE) move_outputs<TILE>(l, anchor, keep, r.taken, d, samples, o);
        for (; o + 2 <= l.outputs; o += 2) move_outputs<2>(l, anchor, keep, r.taken, d, samples, o);
        for (; o < l.outputs; o++) move_outputs<1>(l, anchor, keep, r.taken, d, samples, o);
        for (Int j = 0; l.bias && j < l.outputs; j++) {
            float& b = l.bias[j];
            if (anchor) b = r.anchor.bias[j] + keep * (b - r.anchor.bias[j]);
            for (Int s = 0; s < samples; s++) b -= d[s * l.outputs + j];
        }
    }
    return total / double(r.steps);
}
}
