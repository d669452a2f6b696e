// One step of training, or the outputs, of a small convolutional network: one sample per lane of the vector units.
#include "activation.h"
#include "convolution.h"
#include "dense.h"
#include "take.h"
#include "target.h"

enum Kind { CONVOLUTION, ACTIVATION, DENSE };

// What is made of a model once, however many samples it computes.
static void prepare(const Op* ops, Int many, const float* theta, float* common, bool training) {
    for (Int i = 0; i < many; i++)
        if (ops[i].kind == CONVOLUTION) convolution_prepare(ops[i], theta, common, training);
}

// seen: another model has computed these samples before.
static void forward(const Op* ops, Int many, const Batch& b, Int samples, float* stored, bool seen) {
    for (Int i = 0; i < many; i++) {
        if (ops[i].kind == CONVOLUTION) convolution_forward(ops[i], b, seen && i == 0);
        else if (ops[i].kind == DENSE) dense_forward(ops[i], b);
        else activation_forward(ops[i], b, reinterpret_cast<Norm*>(b.common + ops[i].packed), samples, stored);
    }
}

// The sum of the losses of a batch's samples, each by its share; puts the slopes of the outputs in their place.
static double losses(const Op& last, const Batch& b, const Target& t, const Int* rows, Int samples, Int whole) {
    double total = 0;
    for (Int k = 0; k < b.blocks; k++) {
        float* z = reinterpret_cast<float*>(b.at(k, last.out.at));
        float* d = reinterpret_cast<float*>(b.at(k, last.slope_out.at));
        std::memset(d, 0, size_t(last.filters) * sizeof(V));
        for (int n = 0; n < LANES && k * LANES + n < samples; n++)
            total += loss_of(t, rows[k * LANES + n], whole, z + n, d + n, last.filters, LANES);
    }
    return total;
}

static void backward(const Op* ops, Int many, const Batch& b, Int samples) {
    for (Int i = many - 1; i >= 0; i--) {
        if (ops[i].kind == CONVOLUTION) convolution_backward(ops[i], b);
        else if (ops[i].kind == DENSE) dense_backward(ops[i], b);
        else activation_backward(ops[i], b, reinterpret_cast<const Norm*>(b.common + ops[i].packed), samples);
    }
}

extern "C" {

Int lanes() { return LANES; }

// The gradient (parameters) of a batch, into `grad`; returns its loss. theta: its BatchNorm statistics move.
// part: samples computed at a time, a multiple of the lanes; all of them, where a BatchNorm looks at the whole batch.
double gradient(const Op* ops, Int many, float* theta, float* grad, Int parameters, float* room, Int stride, float* common,
                float* scratch, const Images* images, Int samples, Int part, const Int* classes, const float* values,
                const float* offset, const float* weights) {
    std::memset(grad, 0, size_t(parameters) * sizeof(float));
    const Target whole = {classes, values, offset, weights};
    double loss = 0;
    prepare(ops, many, theta, common, true);
    for (Int first = 0; first < samples; first += part) {
        const Int some = samples - first < part ? samples - first : part, blocks = (some + LANES - 1) / LANES;
        const Batch b = {room, stride, blocks, some - (blocks - 1) * LANES, theta, grad, common, reinterpret_cast<V*>(scratch)};
        take(ops[0], b, *images, first, some);
        forward(ops, many, b, some, theta, false);
        loss += losses(ops[many - 1], b, whole, images->rows + first, some, samples);
        backward(ops, many, b, some);
    }
    return loss;
}

// The outputs of several models for the same samples in evaluation, (models, samples, outputs).
// common: `each` floats of each model.
void outputs(const Op* ops, Int many, const float* thetas, Int models, Int size, float* room, Int stride, float* common,
             Int each, const Images* images, Int samples, Int part, float* out) {
    const Op& last = ops[many - 1];
    for (Int g = 0; g < models; g++) prepare(ops, many, thetas + g * size, common + g * each, false);
    for (Int first = 0; first < samples; first += part) {
        const Int some = samples - first < part ? samples - first : part, blocks = (some + LANES - 1) / LANES;
        Batch b = {room, stride, blocks, some - (blocks - 1) * LANES, thetas, nullptr, common, nullptr};
        take(ops[0], b, *images, first, some);
        for (Int g = 0; g < models; g++, b.theta += size, b.common += each) {
            forward(ops, many, b, some, nullptr, g > 0);
            for (Int n = 0; n < some; n++) {
                const float* z = reinterpret_cast<const float*>(b.at(n / LANES, last.out.at)) + n % LANES;
                for (Int o = 0; o < last.filters; o++) out[(g * samples + first + n) * last.filters + o] = z[o * LANES];
            }
        }
    }
}
}
