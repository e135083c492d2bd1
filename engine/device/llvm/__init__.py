"""Machine code for any CPU: kernels as LLVM IR, compiled in the process by llvmlite."""
