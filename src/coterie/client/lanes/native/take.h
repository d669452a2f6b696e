// Samples as they lie in memory, into the lanes.
#pragma once
#include <utility>

#include "vectors.h"

struct Images {      // channels first or last, or in any other order
    const float* x;
    const Int* rows;  // which of them; null: in their order
    Int sample, channel, row, column;  // how far apart
};

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TURNS 1
#endif
#endif

#ifdef TURNS
// Of two rows of a square the halves of each 2 D lanes change places, so that after D = 1, 2, 4, ... columns are rows.
template <int D, size_t... L>
INLINE void exchange(V& a, V& b, std::index_sequence<L...>) {
    const V first = __builtin_shufflevector(a, b, (int(L) & D ? LANES + int(L) - D : int(L))...);
    b = __builtin_shufflevector(a, b, (int(L) & D ? LANES + int(L) : int(L) + D)...);
    a = first;
}

template <int D>
INLINE void turn(V* v) {
    for (int i = 0; i < LANES; i++)
        if (!(i & D)) exchange<D>(v[i], v[i + D], std::make_index_sequence<LANES>());
    if constexpr (2 * D < LANES) turn<2 * D>(v);
}
#endif

// A run of numbers that lie end to end in each sample; `place` says where the number i of it goes. Returns how many were
// taken: a multiple of the lanes.
template <class Place>
INLINE Int take_run(const float* const* from, Int at, Int many, float* into, const Place& place) {
    Int i = 0;
#ifdef TURNS
    for (; i + LANES <= many; i += LANES) {
        V v[LANES];
        for (int n = 0; n < LANES; n++) v[n] = *reinterpret_cast<const Loose*>(from[n] + at + i);
        turn<1>(v);
        for (int n = 0; n < LANES; n++) *reinterpret_cast<V*>(into + place(i + n) * LANES) = v[n];
    }
#endif
    return i;
}

// All lanes of a place are written at once; those beyond `inside` are zero.
static void take_block(const Op& first, const Images& images, const float* const* from, int inside, float* into) {
    const Int channels = first.channels, width = first.width;
    const bool last = images.channel == 1 && images.column == channels && channels > 1, full = inside == LANES;
    for (Int y = 0; y < first.height; y++) {
        const Int row = y * first.in.row, at = y * images.row;
        Int done = 0;
        if (full && last)
            done = take_run(from, at, width * channels, into, [&](Int i) {
                return i % channels * first.in.channel + row + i / channels;
            }) / channels;
        for (Int c = 0; c < channels; c++) {
            const Int here = c * first.in.channel + row, start = at + c * images.channel;
            Int i = done;
            if (full && images.column == 1) i = take_run(from, start, width, into, [&](Int j) { return here + j; });
            for (; i < width; i++)
                for (int n = 0; n < LANES; n++)
                    into[(here + i) * LANES + n] = n < inside ? from[n][start + i * images.column] : 0.0f;
        }
    }
}

static void take(const Op& first, const Batch& b, const Images& images, Int begin, Int samples) {
    for (Int k = 0; k < b.blocks; k++) {
        const float* from[LANES];
        const Int left = samples - k * LANES;
        for (int n = 0; n < LANES; n++) {
            const Int number = begin + k * LANES + (n < left ? n : 0);
            from[n] = images.x + (images.rows ? images.rows[number] : number) * images.sample;
        }
        take_block(first, images, from, left < LANES ? int(left) : LANES, reinterpret_cast<float*>(b.at(k, first.in.at)));
    }
}
