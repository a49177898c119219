# Faults that the emulation has to notice, one by one: planted_faults_test.cpp says by which check.
# plant(<file> <name> <text that is there once> <instead, where PLANTED is whether it is on>)

# ---- Kernels ----
plant(paged_cuda.cu attend_no_first_barrier
  "(token * shape.query_heads + head) * width;
  }
  __syncthreads();"
  "(token * shape.query_heads + head) * width;
  }
  if (!PLANTED) __syncthreads();")
