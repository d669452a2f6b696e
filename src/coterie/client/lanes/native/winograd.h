// Convolutions by Winograd's minimal filtering along the rows: M outputs of a kernel that is 9 - M wide are a product
// of polynomials, which eight of its values determine. So M outputs take 8 multiplications instead of M (9 - M); the
// sums over channels and rows of the kernel are formed of these values. All of it in single precision, with errors of
// about twice those of plain sums.
#pragma once
#include "filter.h"

constexpr int POINTS = 8;  // 0, 1, -1, 2, -2, 1/2, -1/2 and infinity
constexpr float AT[POINTS - 1] = {0, 1, -1, 2, -2, 0.5f, -0.5f};
constexpr float BY[POINTS] = {-1, -2.0f / 9, -2.0f / 9, 1.0f / 90, 1.0f / 90, 32.0f / 45, 32.0f / 45, 1};  // of Lagrange
constexpr int MOST_ROWS = 15;  // of a kernel, see program.py
constexpr int MOST_TILES = MANY_REGISTERS ? 4 : 2, MOST_FILTERS = 6;

// Where the tile of that number begins: the last one overlaps the one before, where M does not divide the columns.
INLINE Int begins(Int tile, Int m, Int columns) { return tile * m + m <= columns ? tile * m : columns - m; }

// Eight neighbouring inputs at the points (the transposed problem's matrix).
INLINE void inputs_at(const V* d, V* u, Int apart) {
    V even = d[6] - 4.25f * d[4] + d[2], odd = d[5] - 4.25f * d[3] + d[1];
    u[0] = d[6] - d[0] + 5.25f * (d[2] - d[4]);
    u[apart] = even + odd, u[2 * apart] = even - odd;
    even = d[6] - 1.25f * d[4] + 0.25f * d[2], odd = 2.0f * d[5] - 2.5f * d[3] + 0.5f * d[1];
    u[3 * apart] = even + odd, u[4 * apart] = even - odd;
    even = d[6] - 5.0f * d[4] + 4.0f * d[2], odd = 0.5f * d[5] - 2.5f * d[3] + 2.0f * d[1];
    u[5 * apart] = even + odd, u[6 * apart] = even - odd;
    u[7 * apart] = d[7] - d[1] + 5.25f * (d[3] - d[5]);
}

// A block's input at the points: [row][point][channel][tile].
static void transform(const Filter& f, const V* in, Place from, V* u, Int tiles) {
    const Int m = POINTS + 1 - f.kernel_w, apart = f.channels * tiles;
    for (Int y = 0; y < f.height; y++)
        for (Int c = 0; c < f.channels; c++)
            for (Int i = 0; i < tiles; i++)
                inputs_at(in + c * from.channel + y * from.row + begins(i, m, f.columns) - f.pad_w,
                          u + (y * POINTS * f.channels + c) * tiles + i, apart);
}

// The weights at the points: [tile of filters][point][row][channel][filter in the tile].
static void pack_points(const Weights& w, const Filter& f, float* packed) {
    for (Int o = 0, many; o < f.filters; o += many) {
        many = tile_of(f.filters - o);
        for (int t = 0; t < POINTS; t++)
            for (Int ky = 0; ky < f.kernel_h; ky++)
                for (Int c = 0; c < f.channels; c++)
                    for (Int j = 0; j < many; j++) {
                        float value = w.at(o + j, c, ky, f.kernel_w - 1);
                        for (Int kx = f.kernel_w - 2; t + 1 < POINTS && kx >= 0; kx--)
                            value = value * AT[t] + w.at(o + j, c, ky, kx);
                        *packed++ = value * BY[t];
                    }
    }
}

// Sums of products at one point, of OC filters and XT tiles.
template <int OC, int XT>
INLINE void products(const V* u, Int row, Int tiles, Int channels, Int rows, const float* w, V* out) {
    V acc[OC][XT];
    for (int o = 0; o < OC; o++)
        for (int i = 0; i < XT; i++) acc[o][i] = V{};
    for (Int ky = 0; ky < rows; ky++)
        for (Int c = 0; c < channels; c++, w += OC) {
            const V* a = u + ky * row + c * tiles;
            for (int o = 0; o < OC; o++)
                for (int i = 0; i < XT; i++) acc[o][i] += a[i] * w[o];
        }
    for (int o = 0; o < OC; o++)
        for (int i = 0; i < XT; i++) out[o * XT + i] = acc[o][i];
}

// M outputs from the sums at the points, which lie `apart`.
template <int M>
INLINE void outputs_from(const V* s, Int apart, float bias, V* out) {
    const V one = s[apart] + s[2 * apart], two = s[3 * apart] + s[4 * apart], half = s[5 * apart] + s[6 * apart];
    const V one_odd = s[apart] - s[2 * apart], two_odd = s[3 * apart] - s[4 * apart], half_odd = s[5 * apart] - s[6 * apart];
    for (int i = 0; i < M; i++) {
        const float power = float(1 << i);
        V y = i % 2 ? one_odd + power * two_odd + half_odd * (1 / power) : one + power * two + half * (1 / power);
        if (i == 0) y += s[0];
        if (i == M - 1) y += s[7 * apart];
        out[i] = y + bias;
    }
}

template <int M, int OC, int XT>
static void tiles_of(const Filter& f, const V* u, Int tiles, V* out, Place to, const float* w, const float* bias, Int y, Int i) {
    V sums[POINTS][OC * XT];
    const Int y0 = y < f.pad_h ? f.pad_h - y : 0, y1 = f.height + f.pad_h - y < f.kernel_h ? f.height + f.pad_h - y : f.kernel_h;
    const Int point = f.channels * tiles, row = POINTS * point;
    for (int t = 0; t < POINTS; t++)
        products<OC, XT>(u + (y + y0 - f.pad_h) * row + t * point + i, row, tiles, f.channels, y1 - y0,
                         w + (t * f.kernel_h + y0) * f.channels * OC, sums[t]);
    for (int o = 0; o < OC; o++)
        for (int j = 0; j < XT; j++)
            outputs_from<M>(sums[0] + o * XT + j, OC * XT, bias ? bias[o] : 0.0f,
                            out + o * to.channel + y * to.row + begins(i + j, M, f.columns));
}

template <int M, int OC>
static void rows_from(const Filter& f, const V* u, Int tiles, V* out, Place to, const float* w, const float* bias) {
    for (Int y = 0; y < f.rows; y++) {
        Int i = 0;
        for (; i + MOST_TILES <= tiles; i += MOST_TILES) tiles_of<M, OC, MOST_TILES>(f, u, tiles, out, to, w, bias, y, i);
        if (MOST_TILES > 3 && i + 3 <= tiles) tiles_of<M, OC, 3>(f, u, tiles, out, to, w, bias, y, i), i += 3;
        for (; i + 2 <= tiles; i += 2) tiles_of<M, OC, 2>(f, u, tiles, out, to, w, bias, y, i);
        for (; i < tiles; i++) tiles_of<M, OC, 1>(f, u, tiles, out, to, w, bias, y, i);
    }
}

template <int M>
static void filters_from(const Filter& f, const V* u, Int tiles, V* out, Place to, const float* w, const float* bias) {
    const Int each = POINTS * f.channels * f.kernel_h;
    for (Int o = 0, many; o < f.filters; o += many) {
        many = tile_of(f.filters - o);
        V* there = out + o * to.channel;
        const float* b = bias ? bias + o : nullptr;
        if (many == 6) rows_from<M, 6>(f, u, tiles, there, to, w + o * each, b);
        else if (many == 4) rows_from<M, 4>(f, u, tiles, there, to, w + o * each, b);
        else if (many == 2) rows_from<M, 2>(f, u, tiles, there, to, w + o * each, b);
        else rows_from<M, 1>(f, u, tiles, there, to, w + o * each, b);
    }
}

// The convolution, from the input at the points.
static void convolve_points(const Filter& f, const V* u, Int tiles, V* out, Place to, const float* w, const float* bias) {
    if (f.kernel_w == 3) filters_from<6>(f, u, tiles, out, to, w, bias);
    else if (f.kernel_w == 4) filters_from<5>(f, u, tiles, out, to, w, bias);
    else if (f.kernel_w == 5) filters_from<4>(f, u, tiles, out, to, w, bias);
    else if (f.kernel_w == 6) filters_from<3>(f, u, tiles, out, to, w, bias);
    else filters_from<2>(f, u, tiles, out, to, w, bias);
}

// ------------------------------------------------------------------------------------------ gradient of the weights

// The slopes of `filters` filters at the points: [point][row][filter][tile]; each counts in one tile only.
static void slopes_at(const Op& op, const V* slope, V* d, Int filters) {
    const Int m = POINTS + 1 - op.kernel_w, apart = op.rows * filters * op.tiles;
    for (Int y = 0; y < op.rows; y++)
        for (Int o = 0; o < filters; o++)
            for (Int i = 0; i < op.tiles; i++) {
                const Int x = begins(i, m, op.columns);
                const V* s = slope + o * op.slope_out.channel + y * op.slope_out.row + x;
                V* to = d + (y * filters + o) * op.tiles + i;
                V even[3] = {}, odd[3] = {}, last = V{};
                float power = 1;
                for (Int j = 0; j < m; j++, power *= 2) {
                    const V v = x + j < i * m ? V{} : s[j];
                    V* part = j % 2 ? odd : even;
                    part[0] += v, part[1] += v * power, part[2] += v * (1 / power);
                    last = v;
                    if (j == 0) to[0] = v;
                }
                for (int p = 0; p < 3; p++) {
                    to[(2 * p + 1) * apart] = even[p] + odd[p];
                    to[(2 * p + 2) * apart] = even[p] - odd[p];
                }
                to[7 * apart] = last;
            }
}

// OC filters by CN channels at one point, over all blocks: what of a block is read stays in the first cache for all rows.
template <int OC, int CN>
static void weight_products(const Op& op, const Batch& b, int t, Int c, float* sums) {
    V totals[MOST_ROWS][OC * CN] = {};
    const Int row = POINTS * op.channels * op.tiles;
    for (Int k = 0; k < b.blocks; k++)
        for (Int ky = 0; ky < op.kernel_h; ky++) {
            const Int low = op.pad_h - ky, high = op.height + op.pad_h - ky;
            const V* u = b.at(k, op.points) + (ky - op.pad_h) * row + (t * op.channels + c) * op.tiles;
            const V* d = b.at(k, op.slopes) + t * op.rows * OC * op.tiles;
            V acc[OC * CN];
            for (int i = 0; i < OC * CN; i++) acc[i] = totals[ky][i];
            for (Int y = low > 0 ? low : 0; y < (op.rows < high ? op.rows : high); y++)
                for (Int i = 0; i < op.tiles; i++)
                    for (int o = 0; o < OC; o++)
                        for (int j = 0; j < CN; j++)
                            acc[o * CN + j] += d[(y * OC + o) * op.tiles + i] * u[y * row + j * op.tiles + i];
            for (int i = 0; i < OC * CN; i++) totals[ky][i] = acc[i];
        }
    for (Int ky = 0; ky < op.kernel_h; ky++)
        for (int i = 0; i < OC * CN; i++) sums[(ky * OC * CN + i) * POINTS + t] = sum(totals[ky][i]) * BY[t];
}

template <int OC, int CN>
static void weight_channels(const Op& op, const Batch& b, Int o, Int c) {
    float sums[MOST_ROWS * OC * CN * POINTS];
    for (int t = 0; t < POINTS; t++) weight_products<OC, CN>(op, b, t, c, sums);
    for (Int ky = 0; ky < op.kernel_h; ky++)
        for (int i = 0; i < OC * CN; i++) {
            const float* at = sums + (ky * OC * CN + i) * POINTS;
            float* to = b.grad + op.weight + (o + i / CN) * op.by_filter + (c + i % CN) * op.by_channel + ky * op.by_row;
            float power[POINTS - 1] = {1, 1, 1, 1, 1, 1, 1};
            for (Int kx = 0; kx < op.kernel_w; kx++) {
                float total = kx + 1 == op.kernel_w ? at[7] : 0.0f;
                for (int t = 0; t + 1 < POINTS; t++) total += at[t] * power[t], power[t] *= AT[t];
                to[kx * op.by_column] += total;
            }
        }
}

template <int OC>
static void weight_filters(const Op& op, const Batch& b, Int o) {
    for (Int k = 0; k < b.blocks; k++)
        slopes_at(op, b.at(k, op.slope_out.at) + o * op.slope_out.channel, b.at(k, op.slopes), OC);
    Int c = 0;
    for (; c + 4 <= op.channels && op.channels - c != 6; c += 4) weight_channels<OC, 4>(op, b, o, c);
    for (; c + 3 <= op.channels; c += 3) weight_channels<OC, 3>(op, b, o, c);
    if (c + 2 <= op.channels) weight_channels<OC, 2>(op, b, o, c), c += 2;
    if (c < op.channels) weight_channels<OC, 1>(op, b, o, c);
}

static void weights_from_points(const Op& op, const Batch& b) {
    Int o = 0;
    for (; o + SLOPES <= op.filters; o += SLOPES) weight_filters<SLOPES>(op, b, o);
    for (; SLOPES > 2 && o + 2 <= op.filters; o += 2) weight_filters<2>(op, b, o);
    for (; o < op.filters; o++) weight_filters<1>(op, b, o);
}
