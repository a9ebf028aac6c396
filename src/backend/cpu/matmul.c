/* matmul, out_prod and their fused sums: calls of the product engine. */
#include "backend/cpu/cpu.h"

/* y = W x: x [k,n] has a token a row. */
static gr_cpu_product along(const gr_array *w, const gr_array *x, const gr_array *y)
{
  return (gr_cpu_product){ .w = w->data,
                           .w_row = w->nb[1],
                           .w_step = w->nb[0],
                           .dtype = w->dtype,
                           .across = false,
                           .x = x->data,
                           .x_row = x->nb[1],
                           .x_step = x->nb[0],
                           .y = y->data,
                           .y_row = y->nb[1] / (int64_t)sizeof(float),
                           .rows = x->ne[1],
                           .cols = w->ne[1],
                           .depth = w->ne[0] };
}

/* y[i,j] = sum over t of a[i,t] b[j,t]. */
static gr_cpu_product across(const gr_array *a, const gr_array *b, const gr_array *y)
{
  return (gr_cpu_product){ .w = a->data,
                           .w_row = a->nb[1],
                           .w_step = a->nb[0],
                           .dtype = a->dtype,
                           .across = true,
                           .x = b->data,
                           .x_row = b->nb[0],
                           .x_step = b->nb[1],
                           .y = y->data,
                           .y_row = y->nb[1] / (int64_t)sizeof(float),
                           .rows = b->ne[0],
                           .cols = a->ne[0],
                           .depth = a->ne[1] };
}

static size_t scratch_of(gr_cpu_product p, int threads) { return gr_cpu_product_scratch(p.rows, p.cols, p.depth, threads); }

static gr_status run(gr_backend *b, const gr_op_call *call, gr_cpu_product p, const gr_array *base)
{
  if (base && base->nb[0] == sizeof(float)) {
    p.base = base->data;
    p.base_row = base->nb[1] / (int64_t)sizeof(float);
  } else if (base) { /* a view that has no dense rows: the sum starts from a copy */
    for (int64_t r = 0; r < p.rows; r++) gr_cpu_gather(base, (gr_row_at){ r, 0, 0 }, p.y + r * p.y_row);
    p.base = p.y;
    p.base_row = p.y_row;
  }
  gr_cpu_product_run(&p, gr_cpu_isa_of(b), call->pool, call->scratch);
  return GR_OK;
}

gr_status gr_cpu_run_matmul(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  return run(b, call, along(&call->in[0], &call->in[1], &call->out[0]), NULL);
}

gr_status gr_cpu_run_matmul_add(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  return run(b, call, along(&call->in[1], &call->in[2], &call->out[0]), &call->in[0]);
}

gr_status gr_cpu_run_out_prod(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  return run(b, call, across(&call->in[0], &call->in[1], &call->out[0]), NULL);
}

gr_status gr_cpu_run_out_prod_add(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  return run(b, call, across(&call->in[1], &call->in[2], &call->out[0]), &call->in[0]);
}

size_t gr_cpu_scratch_matmul(const gr_op_call *call, int threads)
{
  return scratch_of(along(&call->in[0], &call->in[1], &call->out[0]), threads);
}

size_t gr_cpu_scratch_matmul_add(const gr_op_call *call, int threads)
{
  return scratch_of(along(&call->in[1], &call->in[2], &call->out[0]), threads);
}

size_t gr_cpu_scratch_out_prod(const gr_op_call *call, int threads)
{
  return scratch_of(across(&call->in[0], &call->in[1], &call->out[0]), threads);
}

size_t gr_cpu_scratch_out_prod_add(const gr_op_call *call, int threads)
{
  return scratch_of(across(&call->in[1], &call->in[2], &call->out[0]), threads);
}
