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
    alignas(V) float part[LANES];
    std::memcpy(part, &a, sizeof a);
    for (int many = LANES / 2; many; many /= 2)  // halves, not one after another: each addition waits for the one before
        for (int i = 0; i < many; i++) part[i] += part[i + many];
    return part[0];
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
    Int packed, packed_back;  // room for repacked weights (floats, in the common part)
    Int side;                 // room in a block (vectors)
    Int tiles, points, slopes;     // of a convolution by winograd.h: how many in a row (0: computed plainly), and room in a block
    Int back_tiles, back_points;   // of the same with slopes; room in the scratch (vectors)
    double epsilon, momentum;
};

constexpr int SLOPES = MANY_REGISTERS ? 4 : 2;  // filters whose weights' gradients are computed at once

struct Batch {
    float* room;     // of all blocks
    Int stride;      // floats of a block
    Int blocks;      // of this batch
    Int last;        // samples in the last block
    const float* theta;
    float* grad;
    float* common;   // what is made of the model once
    V* scratch;      // of one block after another

    V* at(Int block, Int where) const { return reinterpret_cast<V*>(room + block * stride) + where; }
    I inside(Int block) const {
        I lane;
        for (int i = 0; i < LANES; i++) lane[i] = (block + 1 < blocks || i < last) ? -1 : 0;
        return lane;
    }
};
