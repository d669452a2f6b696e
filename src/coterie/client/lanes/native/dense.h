// Linear layers: vectors of (inputs) x lanes.
#pragma once
#include "vectors.h"

template <int N>
INLINE void outputs_of(const V* in, V* out, const float* w, const float* bias, Int inputs) {
    V acc[N];
    for (int o = 0; o < N; o++) acc[o] = all(bias ? bias[o] : 0.0f);
    for (Int f = 0; f < inputs; f++)
        for (int o = 0; o < N; o++) acc[o] += in[f] * w[o * inputs + f];
    for (int o = 0; o < N; o++) out[o] = acc[o];
}

static void dense_forward(const Op& op, const Batch& b) {
    const Int inputs = op.channels, outputs = op.filters;
    const float *w = b.theta + op.weight, *bias = op.bias < 0 ? nullptr : b.theta + op.bias;
    for (Int k = 0; k < b.blocks; k++) {
        const V* in = b.at(k, op.in.at);
        V* out = b.at(k, op.out.at);
        Int o = 0;
        for (; o + 8 <= outputs; o += 8) outputs_of<8>(in, out + o, w + o * inputs, bias ? bias + o : nullptr, inputs);
        for (; o < outputs; o++) outputs_of<1>(in, out + o, w + o * inputs, bias ? bias + o : nullptr, inputs);
    }
}

template <int N>
INLINE void slopes_of(const V* slope, V* into, const float* w, Int inputs, Int outputs) {
    V acc[N];
    for (int j = 0; j < N; j++) acc[j] = V{};
    for (Int o = 0; o < outputs; o++)
        for (int j = 0; j < N; j++) acc[j] += slope[o] * w[o * inputs + j];
    for (int j = 0; j < N; j++) into[j] = acc[j];
}

// N outputs by M vectors of inputs; `turned` has a sample per row.
template <int N, int M>
INLINE void gradient_tile(const Op& op, const Batch& b, Int o, Int f) {
    Loose acc[N][M];
    float* grad = b.grad + op.weight + o * op.channels + f;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++) acc[i][j] = *reinterpret_cast<const Loose*>(grad + i * op.channels + j * LANES);
    for (Int k = 0; k < b.blocks; k++) {
        const float* turned = reinterpret_cast<const float*>(b.at(k, op.side)) + f;
        const float* slope = reinterpret_cast<const float*>(b.at(k, op.slope_out.at) + o);
        const Int samples = k + 1 < b.blocks ? LANES : b.last;
        for (Int n = 0; n < samples; n++)
            for (int i = 0; i < N; i++)
                for (int j = 0; j < M; j++)
                    acc[i][j] += *reinterpret_cast<const Loose*>(turned + n * op.channels + j * LANES) * slope[i * LANES + n];
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++) *reinterpret_cast<Loose*>(grad + i * op.channels + j * LANES) = acc[i][j];
}

template <int N>
static void gradient_rows(const Op& op, const Batch& b, Int o) {
    constexpr int M = MANY_REGISTERS ? 4 : 2;
    Int f = 0;
    for (; f + M * LANES <= op.channels; f += M * LANES) gradient_tile<N, M>(op, b, o, f);
    for (; f + LANES <= op.channels; f += LANES) gradient_tile<N, 1>(op, b, o, f);
    for (; f < op.channels; f++)
        for (int i = 0; i < N; i++) {
            float* grad = b.grad + op.weight + (o + i) * op.channels + f;
            for (Int k = 0; k < b.blocks; k++) *grad += sum(b.at(k, op.in.at)[f] * b.at(k, op.slope_out.at)[o + i]);
        }
}

static void dense_backward(const Op& op, const Batch& b) {
    const Int inputs = op.channels, outputs = op.filters;
    for (Int k = 0; k < b.blocks; k++) {
        const float* in = reinterpret_cast<const float*>(b.at(k, op.in.at));
        float* turned = reinterpret_cast<float*>(b.at(k, op.side));
        for (Int f = 0; f < inputs; f++)
            for (int n = 0; n < LANES; n++) turned[n * inputs + f] = in[f * LANES + n];
    }
    Int o = 0;
    for (; o + 4 <= outputs; o += 4) gradient_rows<4>(op, b, o);
    for (; o < outputs; o++) gradient_rows<1>(op, b, o);
    const float* w = b.theta + op.weight;
    for (Int k = 0; k < b.blocks; k++) {
        const V* slope = b.at(k, op.slope_out.at);
        for (Int i = 0; op.bias >= 0 && i < outputs; i++) b.grad[op.bias + i] += sum(slope[i]);
        if (!op.need_slope) continue;
        V* into = b.at(k, op.slope_in.at);
        Int f = 0;
        for (; f + 8 <= inputs; f += 8) slopes_of<8>(slope, into + f, w + f, inputs, outputs);
        for (; f < inputs; f++) slopes_of<1>(slope, into + f, w + f, inputs, outputs);
    }
}
