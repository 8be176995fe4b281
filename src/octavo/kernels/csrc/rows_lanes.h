// The row operations, sixteen elements at a time on every ISA. Each ISA's object file compiles its own copy (see
// bf16.h).
#pragma once

#include "rows.h"
#include "vector_math.h"

namespace octavo {
namespace {

// Loads up to sixteen elements; the missing ones are 0.
template <class Element>
inline Lanes load_some(const Element* from, int64_t num_left) {
  if (num_left >= 16) return Lanes::load(from);
  Element buffer[16] = {};
  memcpy(buffer, from, size_t(num_left) * sizeof(Element));
  return Lanes::load(buffer);
}

template <class Element>
inline void store_some(Lanes lanes, Element* to, int64_t num_left) {
  if (num_left >= 16) return lanes.store(to);
  Element buffer[16];
  lanes.store(buffer);
  memcpy(to, buffer, size_t(num_left) * sizeof(Element));
}

// x / (1 + e^-x)
inline Vector silu(Vector x) { return x / (constant(1.0f) + exp(Vector::zero() - x)); }

// x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), written as x / (1 + e^-2u) to avoid cancellation.
inline Vector gelu(Vector x) {
  const Vector inner = Vector::fma(x * x * x, constant(0.044715f), x);
  return x / (constant(1.0f) + exp(inner * constant(-1.5957691216f)));
}

// `Element` is the type of stored activations: float or bf16.
template <class Element>
struct Rows {
  static const Element* at(const void* from, int64_t index) { return static_cast<const Element*>(from) + index; }
  static Element* at(void* to, int64_t index) { return static_cast<Element*>(to) + index; }

  // x / sqrt(mean(x^2) + eps) * gain. y may be x.
  static void normalize(const Element* x, const float* gain, float eps, int64_t width, Element* y) {
    Lanes squares = Lanes::zero();
    for (int64_t i = 0; i < width; i += 16) {
      const Lanes part = load_some(x + i, width - i);
      squares = Lanes::fma(part, part, squares);
    }
    const Lanes factor = Lanes::broadcast(1.0f / __builtin_sqrtf(squares.sum() / float(width) + eps));
    for (int64_t i = 0; i < width; i += 16) {
      const int64_t left = width - i;
      store_some(load_some(x + i, left) * factor * load_some(gain + i, left), y + i, left);
    }
  }

  static void rms_norm(const ov_rms_norm_args& args, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      for (int64_t head = 0; head < args.num_heads; ++head) {
        normalize(at(args.x, row * args.x_stride + head * args.x_head_stride), args.gain, args.eps, args.width,
                  at(args.y, row * args.y_stride + head * args.y_head_stride));
      }
    }
  }

  // The norm is computed from the stored, rounded sum.
  static void add_rms_norm(const ov_add_rms_norm_args& args, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      Element* sum = at(args.sum, row * args.sum_stride);
      add_row(at(args.stream, row * args.stream_stride), at(args.update, row * args.update_stride), args.width, sum);
      normalize(sum, args.gain, args.eps, args.width, at(args.y, row * args.y_stride));
    }
  }

  // Rotates element i of a head's first half and element i of its second half by the angle of (position, i).
  static void rope(const ov_rope_args& args, int64_t first, int64_t end) {
    const int64_t half = args.head_dim / 2;
    for (int64_t row = first; row < end; ++row) {
      const float* cosines = args.cosines + args.positions[row] * half;
      const float* sines = args.sines + args.positions[row] * half;
      for (int64_t head = 0; head < args.num_heads; ++head) {
        const Element* x = at(args.x, row * args.x_stride + head * args.x_head_stride);
        Element* y = at(args.y, row * args.y_stride + head * args.y_head_stride);
        for (int64_t i = 0; i < half; i += 16) {
          const int64_t left = half - i;
          const Lanes a = load_some(x + i, left), b = load_some(x + half + i, left);
          const Lanes cosine = load_some(cosines + i, left), sine = load_some(sines + i, left);
          store_some(a * cosine - b * sine, y + i, left);
          store_some(b * cosine + a * sine, y + half + i, left);
        }
      }
    }
  }

  template <Vector (*ACTIVATION)(Vector)>
  static void gated_row(const Element* gate, int64_t width, Element* y) {
    const Element* up = gate + width;
    int64_t i = 0;
#if defined(__AVX512F__)
    // It does not matter here which elements are in a register, and loading every other of 32 takes fewer instructions.
    if constexpr (sizeof(Element) == sizeof(bf16)) {
      for (; i + 32 <= width; i += 32) {
        const Vector even = ACTIVATION(Vector::load_even(gate + i)) * Vector::load_even(up + i);
        const Vector odd = ACTIVATION(Vector::load_odd(gate + i)) * Vector::load_odd(up + i);
        Vector::store_pairs(even, odd, y + i);
      }
    }
#endif
    for (; i < width; i += 16) {
      const int64_t left = width - i;
      store_some(Lanes::map(load_some(gate + i, left), ACTIVATION) * load_some(up + i, left), y + i, left);
    }
  }

  static void gated(const ov_gated_args& args, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const Element* gate = at(args.gate_up, row * args.gate_up_stride);
      Element* y = at(args.y, row * args.y_stride);
      if (args.activation == OV_SILU) {
        gated_row<silu>(gate, args.width, y);
      } else {
        gated_row<gelu>(gate, args.width, y);
      }
    }
  }

  static void add_row(const Element* a, const Element* b, int64_t width, Element* y) {
    for (int64_t i = 0; i < width; i += 16) {
      const int64_t left = width - i;
      store_some(load_some(a + i, left) + load_some(b + i, left), y + i, left);
    }
  }

  static void add(const ov_add_args& args, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      add_row(at(args.a, row * args.a_stride), at(args.b, row * args.b_stride), args.width,
              at(args.y, row * args.y_stride));
    }
  }

  // y = function(x), sixteen elements at a time.
  template <class Args, class Function>
  static void map_rows(const Args& args, int64_t first, int64_t end, const Function& function) {
    for (int64_t row = first; row < end; ++row) {
      const Element* x = at(args.x, row * args.x_stride);
      Element* y = at(args.y, row * args.y_stride);
      for (int64_t i = 0; i < args.width; i += 16) {
        store_some(function(load_some(x + i, args.width - i)), y + i, args.width - i);
      }
    }
  }

  static void scale(const ov_scale_args& args, int64_t first, int64_t end) {
    const Lanes factor = Lanes::broadcast(args.factor);
    map_rows(args, first, end, [&](Lanes x) { return x * factor; });
  }

  static void softcap(const ov_softcap_args& args, int64_t first, int64_t end) {
    const Lanes cap = Lanes::broadcast(args.cap);
    map_rows(args, first, end, [&](Lanes x) { return tanh(x / cap) * cap; });
  }

  static constexpr RowKernel kernel() { return {rms_norm, add_rms_norm, rope, gated, add, scale, softcap}; }
};

}  // namespace
}  // namespace octavo
