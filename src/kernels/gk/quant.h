/* Every block format that kernels read. */
#ifndef GK_QUANT_H
#define GK_QUANT_H
#include "kernels/gk/quant_bf16.h"
#include "kernels/gk/quant_f16.h"
#include "kernels/gk/quant_f32.h"
#include "kernels/gk/quant_iq4_nl.h"
#include "kernels/gk/quant_iq4_xs.h"
#include "kernels/gk/quant_mxfp4.h"
#include "kernels/gk/quant_q2_k.h"
#include "kernels/gk/quant_q3_k.h"
#include "kernels/gk/quant_q4_0.h"
#include "kernels/gk/quant_q4_1.h"
#include "kernels/gk/quant_q4_k.h"
#include "kernels/gk/quant_q5_0.h"
#include "kernels/gk/quant_q5_1.h"
#include "kernels/gk/quant_q5_k.h"
#include "kernels/gk/quant_q6_k.h"
#include "kernels/gk/quant_q8_0.h"

#endif
