// A second device that is really the CPU: memory of its own, and every kernel by PyTorch's CPU fallback.
//
// Tensors of both devices do not mix, as on a GPU. Counted is what makes the host wait for a GPU, or it for the host:
// values read, copies either way, and results whose shape depends on values.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <array>
#include <atomic>
#include <cstring>
#include <unordered_set>

using namespace at;
using c10::SymInt, c10::SymIntArrayRef;

static constexpr auto kSecond = c10::DeviceType::PrivateUse1;
static std::atomic<int64_t> reads{0}, to_host{0}, to_device{0}, shapes{0};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSecond; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kSecond, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device d) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = n ? std::malloc(n) : nullptr;
    return {p, p, &std::free, c10::Device(kSecond, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
};
static Memory memory;
REGISTER_ALLOCATOR(kSecond, &memory);

struct Hooks final : PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t n) const override {
    auto fresh = memory.allocate(n);
    if (n && storage.nbytes()) std::memcpy(fresh.get(), storage.data(), std::min(n, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(n);
  }
};
static Hooks hooks;

static const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

static Tensor empty(SymIntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device>,
                    std::optional<bool>, std::optional<MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, keys, dtype_or_default(dtype), format);
}

static Tensor empty_strided(SymIntArrayRef size, SymIntArrayRef stride, std::optional<ScalarType> dtype,
                            std::optional<Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory, keys,
                                           dtype_or_default(dtype));
}

// The same memory as the CPU sees it.
static Tensor on_cpu(const Tensor& t) {
  if (t.is_cpu()) return t;
  auto same = at::from_blob(t.data_ptr(), t.sizes(), t.strides(), [t](void*) {}, t.options().device(kCPU));
  same._set_conj(t.is_conj());
  same._set_neg(t.is_neg());
  return same;
}

static Tensor copy_from(const Tensor& self, const Tensor& to, bool) {
  if (self.is_cpu()) to_device++;
  else if (to.is_cpu()) to_host++;
  on_cpu(to).copy_(on_cpu(self));
  return to;
}

static Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (!to.sizes().equals(self.sizes())) to.resize_(self.sizes());
  return copy_from(self, to, false);
}

static Scalar local_scalar(const Tensor& t) {
  reads++;
  return on_cpu(t).item();
}

static Tensor view(const Tensor& self, SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

static Tensor as_strided(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride, std::optional<SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

static Tensor reshape_alias(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::cpu::as_strided_symint(self, size, stride, std::nullopt);
}

static Tensor& set(Tensor& self, Storage source, SymInt offset, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::cpu::set__symint(self, source, offset, size, stride);
}

static Tensor& set_whole(Tensor& self, Storage source) {
  const int64_t count = source.nbytes() / self.itemsize();
  return at::cpu::set_(self, source, 0, {count}, {});
}

static const Tensor& resize(const Tensor& self, SymIntArrayRef size, std::optional<MemoryFormat>) {
  auto shape = C10_AS_INTARRAYREF_SLOW(size);
  size_t need = (c10::multiply_integers(shape) + self.storage_offset()) * self.itemsize();
  if (need > self.storage().nbytes()) hooks.resizePrivateUse1Bytes(self.storage(), need);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return self;
}

static void refuse_mixing(const std::string& name, const Tensor& t) {
  TORCH_CHECK(!t.defined() || !t.is_cpu(), "Expected all tensors of ", name, " to be on one device, but got one of shape ",
              t.sizes(), " on the CPU.");
}

static bool shape_depends_on_values(const std::string& name, const torch::jit::Stack& stack, size_t first) {
  static const std::unordered_set<std::string> always{
      "aten::nonzero", "aten::masked_select", "aten::bincount", "aten::equal", "aten::_unique", "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::repeat_interleave"};
  if (always.count(name)) return true;
  if (name == "aten::segment_reduce") return !stack[first + 6].toBool();  // unless unsafe, it checks its lengths
  if (name != "aten::index" && name != "aten::index_put" && name != "aten::_index_put_impl_") return false;
  for (const auto& index : stack[first + 1].toOptionalTensorVector())
    if (index && index->defined() && (index->scalar_type() == kBool || index->scalar_type() == kByte)) return true;
  return false;
}

static void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto first = stack->size() - op.schema().arguments().size();
  const auto& name = op.schema().operator_name().name;
  // What is copied here is no copy of the program's.
  const int64_t host = to_host, device = to_device;
  int64_t copied = 0;
  for (auto i = first; i < stack->size(); ++i) {
    auto& argument = (*stack)[i];
    if (argument.isTensor()) {
      const auto t = argument.toTensor();
      // A number, which a CPU tensor without dimensions is, may come along, as on a GPU.
      if (t.defined() && t.is_cpu() && t.dim() == 0) argument = t.to(c10::Device(kSecond, 0));
      else refuse_mixing(name, t);
    }
    if (argument.isTensorList()) for (const Tensor& t : argument.toTensorVector()) refuse_mixing(name, t);
    // As on a GPU, indices may be the CPU's, and are copied.
    if (argument.isOptionalTensorList())
      for (const auto& t : argument.toOptionalTensorVector()) if (t && t->defined() && t->is_cpu()) copied++;
  }
  if (shape_depends_on_values(name, *stack, first)) shapes++;
  at::native::cpu_fallback(op, stack);
  to_host = host;
  to_device = device + copied;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("view", &view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage_storage_offset", &set);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("resize_", &resize);
}

// A copy resolves these itself; by PyTorch's own ways it would need a copy first.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY(second_device, m) {
  m.def("init() -> ()", [] { at::RegisterPrivateUse1HooksInterface(&hooks); });
  m.def("counts() -> int[]", [] { return std::vector<int64_t>{reads, to_host, to_device, shapes}; });
}
