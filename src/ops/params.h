/* Parameter structs of the ops that have any, and the input bundles of the wide ones. */
#ifndef GR_OPS_PARAMS_H
#define GR_OPS_PARAMS_H
#include <stdbool.h>
#include <stdint.h>

#include "ops/op.h"

struct gr_scale_params {
  float s;
};

struct gr_reshape_params {
  int64_t ne[GR_DIMS];
  int32_t last; /* the dimension that is x's last */
};

struct gr_norm_params {
  float eps;
};

/* Pairing of rope: NORMAL rotates (x[2i], x[2i+1]), NEOX rotates (x[i], x[i + n_rot/2]). */
enum { GR_ROPE_NORMAL, GR_ROPE_NEOX };
struct gr_rope_params {
  int32_t mode;
  int32_t inverse; /* rotate back: the gradient */
};

/* SWIGLU: silu(gate) * up. GEGLU: gelu(gate) * up with gelu's tanh form. SWIGLU_OAI: g = min(gate, 7), u = clamp(up, -7, 7),
 * g * sigmoid(1.702 g) * (u + 1). */
enum { GR_GLU_SWIGLU, GR_GLU_GEGLU, GR_GLU_SWIGLU_OAI };
struct gr_glu_params {
  int32_t kind;
};

/* Attention. q [dh,H,n], k [dh,Hk,m], v [dv,Hk,m], H a multiple of Hk (head h uses key head h / (H/Hk)); pos_q, seg_q [n] and
 * pos_k, seg_k [m] are I32; sinks [H] or NULL. Key j is visible to query i iff seg_k[j] == seg_q[i], seg >= 0, pos_k[j] <= pos_q[i]
 * and (window == 0 or pos_q[i] - pos_k[j] < window). s = scale q.k, then softcap*tanh(s/softcap) when softcap > 0; softmax over the
 * visible keys and the sink. A query that sees no key (and has no sink) gives 0, lse = -inf, and no gradient.
 * The keys of a segment stand next to each other in ascending position: kernels rely on it, the reference does not.
 * Outputs: out [dv,H,n], lse [H,n] (the sink is in it). attention_back takes q, k, v, pos_q, seg_q, pos_k, seg_k, out, lse, dout in this
 * order (no sinks: lse has them) and gives dq, dk, dv: the flash form, probabilities recomputed from lse. */
struct gr_attention_inputs {
  gr_tensor *q, *k, *v, *pos_q, *seg_q, *pos_k, *seg_k, *sinks;
};
struct gr_attention_params {
  float scale, softcap;
  int32_t window;
};

/* Head and loss. z = scale * (W h + bias + lora_scale * B (A h)), then softcap*tanh(z/softcap) when softcap > 0;
 * nll = logsumexp(z) - z[label]; a label of -1 is masked: nll 0, lse 0, gradient exactly 0 and nothing computed.
 * w [D,V] any type, h [D,n], labels [n] I32; optional bias [V], a [D,r], b [r,V] (F32).
 * Outputs nll [n], lse [n]. Inputs stand in the order of the struct; those of head_loss_back are w, h, labels, lse, dnll, bias, a, b (from
 * bias on they may be absent). A label outside the vocabulary is masked too: labels are checked where they enter. Back: dh = gradient of
 * sum(dnll * nll); masked rows exactly 0; outputs dh [D,n] and, with an adapter, da [D,r], db [r,V]. */
struct gr_head_inputs {
  gr_tensor *w, *h, *labels, *bias, *a, *b;
};
struct gr_head_params {
  float scale, softcap, lora_scale;
};

/* Dropout of x [C,n]: keys [2,n] I32 = (sample, token within it), run [4] I32 = (seed low, seed high, step low, step high).
 * Kept elements are scaled by 1/(1-rate); 0 <= rate < 1. The mask is stated, and computed, in ops/dropout.h. */
struct gr_dropout_params {
  float rate;
  int32_t adapter;
};

/* Routing. logits [E,n], selection bias [E] or NULL; used = k of them are chosen for each token.
 * Gate values g: SOFTMAX over all E; SIGMOID of each; SELECTED: softmax over the chosen ones alone.
 * Chosen are the k largest scores: g + bias with a bias (SELECTED: logit + bias), else the logits, which rank alike and make no ties by
 * saturation. Equal scores: the lower expert first; NaN ranks as -infinity. Slots stand by descending score.
 * w_i = scale * g_i, over max(sum of the chosen g, clamp) when renormalised (clamp 0: over the sum); where clamp acts it is a constant.
 * Outputs weights [k,n] F32, ids [k,n] I32. The bias is frozen and ids are never differentiated. */
enum { GR_GATE_SOFTMAX, GR_GATE_SIGMOID, GR_GATE_SELECTED, GR_GATE_KINDS };
struct gr_route_params {
  int32_t used, gating, renormalise;
  float clamp, scale;
};

struct gr_group_params {
  int64_t experts;
};

/* matmul_id_back: rows of x for each token, a divisor of the experts used. */
struct gr_slots_params {
  int64_t slots;
};

struct gr_slots_lora_params {
  int64_t slots;
  float s;
};

/* slice: count elements from first. slice_back: count is the length of the rows that dy is placed in. */
struct gr_slice_params {
  int64_t first, count;
};

#endif
