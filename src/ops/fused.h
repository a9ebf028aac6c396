/* What the fused sums share: z = y + op(u, v) is y plus what op's own descriptor says of its inputs. */
#ifndef GR_OPS_FUSED_H
#define GR_OPS_FUSED_H
#include "ops/reference.h"

/* The longest contraction of a matmul_add. A backend may sum a longer one in pieces, each on top of what is there already, y at first:
 * not the bits of the two nodes. They would show: a fresh adapter's zeros come between a product and what it is added to, and must not
 * change a logit. */
enum { GR_FUSED_DEPTH = 1024 };

/* Infers `op` on inputs 1 and 2, and checks that input 0 has the shape of its result. */
gr_status gr_fused_add_infer(gr_infer *c, gr_op_id fused, gr_op_id op, gr_error *e);
void gr_fused_add_reference(const gr_op_call *c, gr_op_id op);
void gr_fused_add_cost(const gr_op_call *c, gr_op_id op, gr_cost *k);

#endif
