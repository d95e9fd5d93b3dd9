// The optimizers' update rules, one parameter at a time: the definitions of `optimizer.rs` in `embedding`, with the
// same rounding.
#pragma once

#include "element.cuh"

// A number whose operations round one by one as IEEE 754 says: a fused multiply-add would round differently from the
// CPU.
struct Exact {
    float value;
};

__device__ inline Exact operator+(Exact a, Exact b) { return {__fadd_rn(a.value, b.value)}; }
__device__ inline Exact operator-(Exact a, Exact b) { return {__fsub_rn(a.value, b.value)}; }
__device__ inline Exact operator*(Exact a, Exact b) { return {__fmul_rn(a.value, b.value)}; }
__device__ inline Exact operator/(Exact a, Exact b) { return {__fdiv_rn(a.value, b.value)}; }
__device__ inline Exact root(Exact a) { return {__fsqrt_rn(a.value)}; }

enum RuleKind : u32 { SGD, MOMENTUM, NESTEROV, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL };

// The rules of single elements, and all rules, each as `DO(KIND)`.
#define RULES_OF_ELEMENTS(DO) DO(SGD) DO(MOMENTUM) DO(NESTEROV) DO(ADAGRAD) DO(ADAM) DO(FTRL)
#define RULES(DO) RULES_OF_ELEMENTS(DO) DO(ROWWISE_ADAGRAD)

struct Rule {
    u32 kind;
    float weight_decay;
    // Where Adagrad's accumulators start.
    float initial;
    // Decay of the first state: the momentum, or Adam's beta1.
    float keep;
    // Decay of the second state: Adam's beta2.
    float keep_second;
    // Added to roots: epsilon, or FTRL's beta.
    float damping;
    float l1;
    float l2;
};

// Numbers of state per parameter; row-wise Adagrad keeps one per row instead.
template <u32 KIND>
constexpr u32 STATES = KIND == ADAM || KIND == FTRL ? 2 : KIND == SGD || KIND == ROWWISE_ADAGRAD ? 0 : 1;

__device__ inline Exact decayed(const Rule& rule, Exact gradient, Exact weight) {
    return gradient + Exact{rule.weight_decay} * weight;
}

// Updates a parameter and its state from its gradient.
template <u32 KIND>
__device__ inline void apply(const Rule& rule, Rate at, float gradient, float& parameter, float& first,
                             float& second) {
    static_assert(KIND != ROWWISE_ADAGRAD, "it is a rule of rows");
    const Exact rate = {at.rate}, weight = {parameter}, g = decayed(rule, {gradient}, weight);
    const Exact keep = {rule.keep}, damping = {rule.damping};
    if constexpr (KIND == SGD) {
        parameter = (weight - rate * g).value;
    } else if constexpr (KIND == MOMENTUM || KIND == NESTEROV) {
        const Exact velocity = keep * Exact{first} + g;
        first = velocity.value;
        parameter = (weight - rate * (KIND == NESTEROV ? g + keep * velocity : velocity)).value;
    } else if constexpr (KIND == ADAGRAD) {
        const Exact accumulator = Exact{first} + g * g;
        first = accumulator.value;
        // With a gradient of 0 the quotient may be 0/0; the parameter must not move then.
        if (g.value != 0) parameter = (weight - rate * g / (root(accumulator) + damping)).value;
    } else if constexpr (KIND == ADAM) {
        const Exact keep_second = {rule.keep_second}, one = {1};
        const Exact mean = keep * Exact{first} + (one - keep) * g;
        const Exact square = keep_second * Exact{second} + (one - keep_second) * (g * g);
        first = mean.value;
        second = square.value;
        const Exact step = rate * mean / (root(square) / Exact{at.root_correction} + damping);
        if (mean.value != 0) parameter = (weight - step).value;
    } else {
        const Exact l1 = rate * Exact{rule.l1}, l2 = rate * Exact{rule.l2};
        const Exact squares = Exact{second} + g * g;
        const Exact z = Exact{first} + (rate * g - (root(squares) - root({second})) * weight);
        first = z.value;
        second = squares.value;
        const Exact pulled = Exact{fabsf(z.value)} - l1, divisor = damping + root(squares) + l2;
        const Exact moved = Exact{-copysignf(pulled.value, z.value)} / divisor;
        // With no gradient so far and no damping, the parameter keeps its initial value.
        if (divisor.value != 0) parameter = pulled.value <= 0 ? 0 : moved.value;
    }
}

// Updates four consecutive parameters.
template <u32 KIND>
__device__ inline void apply4(const Rule& rule, Rate at, float4 gradients, float4& parameters, float4& first,
                              float4& second) {
    apply<KIND>(rule, at, gradients.x, parameters.x, first.x, second.x);
    apply<KIND>(rule, at, gradients.y, parameters.y, first.y, second.y);
    apply<KIND>(rule, at, gradients.z, parameters.z, first.z, second.z);
    apply<KIND>(rule, at, gradients.w, parameters.w, first.w, second.w);
}
