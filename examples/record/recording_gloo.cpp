// Gloo behind a thin backend that describes each call to the profiler the way the NCCL backend does: a
// `record_param_comms` range with the collective's name, sizes, dtype, group and sequence number. The
// work itself, and the `gloo:*` range that shows it, are gloo's own and untouched.
#include <torch/extension.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

namespace {

int64_t elements(const Tensors& tensors) {
  int64_t n = 0;
  for (const auto& tensor : tensors) n += tensor.numel();
  return n;
}

class RecordingGloo : public c10d::Backend {
 public:
  RecordingGloo(BackendPtr gloo, int first, int stride)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), first_(first), stride_(stride) {}

  const std::string getBackendName() const override { return "rgloo"; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void abort() override { gloo_->abort(); }
  void shutdown() override { gloo_->shutdown(); }

  WorkPtr broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return record("broadcast", t, t, rank_, o.asyncOp, [&] { return gloo_->broadcast(t, o); });
  }
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return record("allreduce", t, t, rank_, o.asyncOp, [&] { return gloo_->allreduce(t, o); });
  }
  WorkPtr allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return record("all_gather", in, out.at(0), rank_, o.asyncOp, [&] { return gloo_->allgather(out, in, o); });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    return record("_allgather_base", {in}, {out}, rank_, o.asyncOp, [&] { return gloo_->_allgather_base(out, in, o); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return record("_reduce_scatter_base", {in}, {out}, rank_, o.asyncOp,
                  [&] { return gloo_->_reduce_scatter_base(out, in, o); });
  }
  WorkPtr scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ScatterOptions& o) override {
    // Only the root has an input: one tensor per rank.
    return record("scatter", in.empty() ? Tensors{} : in[0], out, rank_, o.asyncOp,
                  [&] { return gloo_->scatter(out, in, o); });
  }
  WorkPtr send(Tensors& t, int peer, int tag) override {
    return record("send", t, t, peer, true, [&] { return gloo_->send(t, peer, tag); }, /*p2p=*/true);
  }
  WorkPtr recv(Tensors& t, int peer, int tag) override {
    return record("recv", t, t, peer, true, [&] { return gloo_->recv(t, peer, tag); }, /*p2p=*/true);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return record("barrier", {}, {}, rank_, o.asyncOp, [&] { return gloo_->barrier(o); });
  }

 private:
  template <typename Call>
  WorkPtr record(const char* name, Tensors in, Tensors out, int rank, bool async, Call call, bool p2p = false) {
    auto seq = std::make_tuple(p2p ? ++p2p_ : ++collectives_, p2p);
    auto group = std::make_tuple(getGroupUid(), getGroupDesc());
    auto dtype = out.empty() ? at::kByte : out[0].scalar_type();
    std::vector<int64_t> even;  // no split sizes: none of the calls above is uneven
    RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(seq, group, in, out, rank, name, elements(in), elements(out), dtype,
                                          even, even, first_, stride_, getSize(), async);
    return call();
  }

  BackendPtr gloo_;
  int first_, stride_;  // global ranks of the group: first_, first_ + stride_, ...
  int64_t collectives_ = 0, p2p_ = 0;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("wrap", [](BackendPtr gloo, int first, int stride) -> BackendPtr {
    return c10::make_intrusive<RecordingGloo>(std::move(gloo), first, stride);
  });
}
