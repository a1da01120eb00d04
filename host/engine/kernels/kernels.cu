// All kernels as one module, compiled ahead of time or at run time. `prefill_wide.cu` is empty except for sm_90a.
#include "decode.cu"
#include "heads.cu"
#include "matvec.cu"
#include "pages.cu"
#include "prefill.cu"
#include "prefill_wide.cu"
#include "rows.cu"
#include "sampling.cu"
