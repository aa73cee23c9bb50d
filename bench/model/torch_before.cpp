// Names that sgl_kernel's library wants of PyTorch 2.14 and that 2.11 lacks. The library is loaded,
// because SGLang imports its package, and no kernel of it is called: objects of PyTorch have
// another layout there.
#include <cstdlib>

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define SCHEMA "_ZNR5torch7Library4_defEON3c1014FunctionSchemaEPNS1_12OperatorNameERKSt6vectorI"
#define EITHER "_ZNR5torch7Library4_defEOSt7variantIJN3c1012OperatorNameENS2_14FunctionSchemaEEE"

extern "C" {
void not_implemented() asm("_ZN3c1019NotImplementedErrorC1ENS_14SourceLocationE" STRING);
void capture() asm("_ZN3c104cuda19CUDAErrorLogCaptureC1Ev");
void check() asm(
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jbPNS0_19CUDAErrorLogCaptureE");

void* define(void*, void*, void*, const void*, int) asm(
    SCHEMA "NS_10headeronly3TagESaIS8_EENS_17_RegisterOrVerifyE");
void* define_before(void*, void*, void*, const void*, int) asm(
    SCHEMA "N2at3TagESaIS8_EENS_17_RegisterOrVerifyE");

void* bind(void*, void*, void*, const void*) asm(
    EITHER "ONS_11CppFunctionERKSt6vectorINS_10headeronly3TagESaISB_EE");
void* bind_before(void*, void*, void*, const void*) asm(
    EITHER "ONS_11CppFunctionERKSt6vectorIN2at3TagESaISB_EE");
}

// No kernel is called, so nothing calls these.
void not_implemented() { std::abort(); }
void capture() { std::abort(); }
void check() { std::abort(); }

// The same under other names of a type; the lists of it are empty.
void* define(void* library, void* schema, void* name, const void* tags, int how) {
    return define_before(library, schema, name, tags, how);
}
void* bind(void* library, void* name, void* function, const void* tags) {
    return bind_before(library, name, function, tags);
}
