// Convolutions with stride 1: the lanes are samples, so they are full whatever the number of channels.
#pragma once
#include "filter.h"
#include "winograd.h"

// OC filters at XP neighbouring places of a row.
template <int OC, int XP>
INLINE void tile(const Filter& f, const V* in, Place from, V* out, Place to, const float* weights, const float* bias,
                 Int y, Int x) {
    V acc[XP][OC];
    for (int p = 0; p < XP; p++)
        for (int o = 0; o < OC; o++) acc[p][o] = all(bias ? bias[o] : 0.0f);
    // Rows and columns outside of the image are zeros: left out where all XP places are outside.
    const Int y0 = y < f.pad_h ? f.pad_h - y : 0, y1 = f.height + f.pad_h - y < f.kernel_h ? f.height + f.pad_h - y : f.kernel_h;
    const Int left = f.pad_w - (x + XP - 1), right = f.width + f.pad_w - x;
    const Int x0 = left > 0 ? left : 0, x1 = right < f.kernel_w ? right : f.kernel_w;
    for (Int c = 0; c < f.channels; c++)
        for (Int ky = y0; ky < y1; ky++) {
            const V* a = in + c * from.channel + (y + ky - f.pad_h) * from.row + x - f.pad_w;
            const float* w = weights + (c * f.kernel_h + ky) * f.kernel_w * OC;
            for (Int kx = x0; kx < x1; kx++)
                for (int o = 0; o < OC; o++)
                    for (int p = 0; p < XP; p++) acc[p][o] += a[kx + p] * w[kx * OC + o];
        }
    for (int o = 0; o < OC; o++)
        for (int p = 0; p < XP; p++) out[o * to.channel + y * to.row + x + p] = acc[p][o];
}

template <int OC>
static void rows_of(const Filter& f, const V* in, Place from, V* out, Place to, const float* w, const float* bias) {
    for (Int y = 0; y < f.rows; y++) {
        Int x = 0;
        if (MANY_REGISTERS)
            for (; x + 4 <= f.columns; x += 4) tile<OC, 4>(f, in, from, out, to, w, bias, y, x);
        for (; x + 2 <= f.columns; x += 2) tile<OC, 2>(f, in, from, out, to, w, bias, y, x);
        for (; x < f.columns; x++) tile<OC, 1>(f, in, from, out, to, w, bias, y, x);
    }
}

// weights: packed as [tile of filters][channel][row][column][filter in the tile].
static void convolve(const Filter& f, const V* in, Place from, V* out, Place to, const float* w, const float* bias) {
    const Int each = f.channels * f.kernel_h * f.kernel_w;
    for (Int o = 0; o < f.filters;) {
        const Int many = tile_of(f.filters - o);
        V* there = out + o * to.channel;
        const float* b = bias ? bias + o : nullptr;
        if (many == 6) rows_of<6>(f, in, from, there, to, w + o * each, b);
        else if (many == 4) rows_of<4>(f, in, from, there, to, w + o * each, b);
        else if (many == 2) rows_of<2>(f, in, from, there, to, w + o * each, b);
        else rows_of<1>(f, in, from, there, to, w + o * each, b);
        o += many;
    }
}

static void pack(const Weights& w, const Filter& f, float* packed) {
    for (Int o = 0, many; o < f.filters; o += many) {
        many = tile_of(f.filters - o);
        for (Int c = 0; c < f.channels; c++)
            for (Int ky = 0; ky < f.kernel_h; ky++)
                for (Int kx = 0; kx < f.kernel_w; kx++)
                    for (Int j = 0; j < many; j++) *packed++ = w.at(o + j, c, ky, kx);
    }
}

// Once for each model; training also asks for the slope of the input.
static void convolution_prepare(const Op& op, const float* theta, float* common, bool training) {
    const Weights w = {op, theta + op.weight, false}, mirrored = {op, theta + op.weight, true};
    op.tiles ? pack_points(w, ahead(op), common + op.packed) : pack(w, ahead(op), common + op.packed);
    if (!training || !op.need_slope) return;
    op.back_tiles ? pack_points(mirrored, back(op), common + op.packed_back) : pack(mirrored, back(op), common + op.packed_back);
}

// seen: the input is that of the model before.
static void convolution_forward(const Op& op, const Batch& b, bool seen) {
    const Filter f = ahead(op);
    const float* bias = op.bias < 0 ? nullptr : b.theta + op.bias;
    for (Int k = 0; k < b.blocks; k++) {
        const V* in = b.at(k, op.in.at);
        if (!op.tiles) {
            convolve(f, in, op.in, b.at(k, op.out.at), op.out, b.common + op.packed, bias);
            continue;
        }
        if (!seen) transform(f, in, op.in, b.at(k, op.points), op.tiles);
        convolve_points(f, b.at(k, op.points), op.tiles, b.at(k, op.out.at), op.out, b.common + op.packed, bias);
    }
}

// The gradient of OC filters by KX neighbouring weights of a row, from the rows y0 to y1 of a block.
template <int OC, int KX>
static void weight_tile(const Op& op, const V* in, const V* slope, float* grad, Int ky, Int kx, Int y0, Int y1) {
    V acc[OC][KX];
    for (int o = 0; o < OC; o++)
        for (int k = 0; k < KX; k++) acc[o][k] = V{};
    const Int low = op.pad_h - ky, high = op.height + op.pad_h - ky;
    for (Int y = y0 > low ? y0 : low; y < (y1 < high ? y1 : high); y++) {
        const V* a = in + (y + ky - op.pad_h) * op.in.row + kx - op.pad_w;
        const V* d = slope + y * op.slope_out.row;
        for (Int x = 0; x < op.columns; x++)
            for (int k = 0; k < KX; k++)
                for (int o = 0; o < OC; o++) acc[o][k] += a[x + k] * d[o * op.slope_out.channel + x];
    }
    for (int o = 0; o < OC; o++)
        for (int k = 0; k < KX; k++) grad[o * op.by_filter + (kx + k) * op.by_column] += sum(acc[o][k]);
}

template <int OC>
static void weight_rows(const Op& op, const V* in, const V* slope, float* grad, Int y0, Int y1) {
    for (Int c = 0; c < op.channels; c++)
        for (Int ky = 0; ky < op.kernel_h; ky++) {
            float* g = grad + c * op.by_channel + ky * op.by_row;
            const V* a = in + c * op.in.channel;
            Int kx = 0;
            for (; kx + 5 <= op.kernel_w; kx += 5) weight_tile<OC, 5>(op, a, slope, g, ky, kx, y0, y1);
            for (; kx + 3 <= op.kernel_w; kx += 3) weight_tile<OC, 3>(op, a, slope, g, ky, kx, y0, y1);
            for (; kx < op.kernel_w; kx++) weight_tile<OC, 1>(op, a, slope, g, ky, kx, y0, y1);
        }
}

static void weights_backward(const Op& op, const Batch& b) {
    // As many rows at a time as stay in the first cache while all weights pass over them.
    const Int bytes = (SLOPES * op.columns + op.width) * Int(sizeof(V)), part = bytes < 24576 ? 24576 / bytes : 1;
    float* grad = b.grad + op.weight;
    for (Int k = 0; k < b.blocks; k++) {
        const V *in = b.at(k, op.in.at), *slope = b.at(k, op.slope_out.at);
        for (Int y = 0; y < op.rows; y += part) {
            const Int end = y + part < op.rows ? y + part : op.rows;
            Int o = 0;
            for (; o + SLOPES <= op.filters; o += SLOPES)
                weight_rows<SLOPES>(op, in, slope + o * op.slope_out.channel, grad + o * op.by_filter, y, end);
            for (; o < op.filters; o++)
                weight_rows<1>(op, in, slope + o * op.slope_out.channel, grad + o * op.by_filter, y, end);
        }
    }
}

static void convolution_backward(const Op& op, const Batch& b) {
    if (op.tiles) weights_from_points(op, b);
    else weights_backward(op, b);
    for (Int k = 0; op.bias >= 0 && k < b.blocks; k++)
        for (Int o = 0; o < op.filters; o++) {
            const V* slope = b.at(k, op.slope_out.at) + o * op.slope_out.channel;
            V total = V{};
            for (Int y = 0; y < op.rows; y++)
                for (Int x = 0; x < op.columns; x++) total += slope[y * op.slope_out.row + x];
            b.grad[op.bias + o] += sum(total);
        }
    if (!op.need_slope) return;
    const Filter f = back(op);
    const float* weights = b.common + op.packed_back;
    for (Int k = 0; k < b.blocks; k++) {
        const V* slope = b.at(k, op.slope_out.at);
        V* into = b.at(k, op.slope_in.at);
        if (op.back_tiles) {
            transform(f, slope, op.slope_out, b.scratch + op.back_points, op.back_tiles);
            convolve_points(f, b.scratch + op.back_points, op.back_tiles, into, op.slope_in, weights, nullptr);
        } else {
            convolve(f, slope, op.slope_out, into, op.slope_in, weights, nullptr);
        }
    }
}
