// Vectors of the processor's own width, one sample per lane, and the shapes of what is computed at once.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr bool MANY_REGISTERS = true;  // 32
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr bool MANY_REGISTERS = false;  // 16
#elif defined(__aarch64__)
constexpr int LANES = 4;
constexpr bool MANY_REGISTERS = true;
#else
constexpr int LANES = 4;
constexpr bool MANY_REGISTERS = false;
#endif

typedef float V __attribute__((vector_size(LANES * sizeof(float))));
typedef float Loose __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef int32_t I __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef int64_t Int;

#define INLINE static inline __attribute__((always_inline))

INLINE V all(float value) { return V{} + value; }

INLINE float sum(V a) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += a[i];
    return total;
}

// Where values and slopes of a tensor are in a block of samples, in vectors: rows may have zeros around them.
struct Place {
    Int at, channel, row;
};

struct Op {
    Int kind;
    Place in, out, slope_in, slope_out;  // slopes: the gradient of the loss by these values
    Int channels, height, width;         // of the input; of vectors: (length, 1, 1)
    Int filters, rows, columns;          // of the output
    Int kernel_h, kernel_w, pad_h, pad_w;
    Int weight, by_filter, by_channel, by_row, by_column;  // in the model's vector, and how far apart
    Int bias;                                               // -1: none
    Int norm, scale, shift, mean, variance;                 // BatchNorm: whether, and where in the model's vector
    Int relu, pool_h, pool_w;
    Int need_slope;    // whether the slope of the input is asked for
    Int packed, side;  // room for repacked weights (floats, in the common part), and in a block (vectors)
    double epsilon, momentum;
};

struct Batch {
    float* room;     // of all blocks
    Int stride;      // floats of a block
    Int blocks;      // of this batch
    Int last;        // samples in the last block
    const float* theta;
    float* grad;
    float* common;

    V* at(Int block, Int where) const { return reinterpret_cast<V*>(room + block * stride) + where; }
    I inside(Int block) const {
        I lane;
        for (int i = 0; i < LANES; i++) lane[i] = (block + 1 < blocks || i < last) ? -1 : 0;
        return lane;
    }
};
