// Python binding: numpy arrays in, numpy arrays out, the interpreter released while it runs.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "batch.h"
#include "bounds.h"
#include "engine.h"
#include "model.h"
#include "moves.h"

namespace py = pybind11;

namespace placer {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + (shape[i] < 0 ? "any" : std::to_string(shape[i]));
  }
  return text + ")";
}

// Checks dtype, layout and shape (-1: any) without copying.
template <typename T>
Array<T> CheckedArray(const py::object& value, const char* name,
                      const std::vector<int64_t>& shape) {
  if (!Array<T>::check_(value)) {
    throw std::invalid_argument(std::string(name) + " must be a C-contiguous array of " +
                                std::string(py::str(py::dtype::of<T>())));
  }
  Array<T> array = py::reinterpret_borrow<Array<T>>(value);
  bool fits = array.ndim() == static_cast<py::ssize_t>(shape.size());
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] < 0 || array.shape(static_cast<py::ssize_t>(i)) == shape[i];
  }
  if (!fits) {
    std::vector<int64_t> actual(array.shape(), array.shape() + array.ndim());
    throw std::invalid_argument(std::string(name) + " has shape " + ShapeText(actual) +
                                ": must be " + ShapeText(shape));
  }
  return array;
}

// Calls PyErr_CheckSignals about ten times a second, so that Ctrl-C stops a long batch.
class SignalPoll {
 public:
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return false;
    last_ = now;
    const py::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

template <typename T>
py::array_t<T> Column(const std::vector<Span>& spans, T Span::*field) {
  py::array_t<T> column(static_cast<py::ssize_t>(spans.size()));
  T* out = column.mutable_data();
  for (size_t i = 0; i < spans.size(); ++i) out[i] = spans[i].*field;
  return column;
}

class Simulator {
 public:
  explicit Simulator(const py::object& inputs) {
    Inputs in;
    std::vector<py::object> keep;
    auto get = [&](auto** target, const char* name, const std::vector<int64_t>& shape) {
      using T = std::remove_const_t<std::remove_reference_t<decltype(**target)>>;
      Array<T> array = CheckedArray<T>(inputs.attr(name), name, shape);
      *target = array.data();
      keep.push_back(array);
      return array;
    };
    in.num_ops = get(&in.executed, "executed", {-1}).shape(0);
    in.num_tensors = get(&in.tensor_bytes, "tensor_bytes", {-1}).shape(0);
    in.num_edges = get(&in.in_tensor, "in_tensor", {-1}).shape(0);
    in.num_controls = get(&in.control_src, "control_src", {-1}).shape(0);
    in.num_devices = get(&in.device_class, "device_class", {-1}).shape(0);
    const int64_t n = in.num_ops, t = in.num_tensors, d = in.num_devices;
    in.num_classes = get(&in.op_seconds, "op_seconds", {-1, n}).shape(0);
    get(&in.temporary_bytes, "temporary_bytes", {in.num_classes, n});
    get(&in.launch_seconds, "launch_seconds", {d});
    get(&in.persistent_bytes, "persistent_bytes", {n});
    get(&in.out_ptr, "out_ptr", {n + 1});
    get(&in.tensor_local_bytes, "tensor_local_bytes", {t});
    get(&in.tensor_alias, "tensor_alias", {t});
    get(&in.in_ptr, "in_ptr", {n + 1});
    get(&in.control_dst, "control_dst", {in.num_controls});
    get(&in.memory_limit, "memory_limit", {d});
    get(&in.concurrency, "concurrency", {d});
    get(&in.executor_threads, "executor_threads", {d});
    get(&in.contention, "contention", {d, d});
    get(&in.inline_op, "inline_op", {n});
    get(&in.latency, "latency", {d, d});
    get(&in.seconds_per_byte, "seconds_per_byte", {d, d});
    get(&in.channels, "channels", {d, d, 2});
    get(&in.send_cpu_seconds, "send_cpu_seconds", {d, d});
    get(&in.send_cpu_seconds_per_byte, "send_cpu_seconds_per_byte", {d, d});
    get(&in.recv_cpu_seconds, "recv_cpu_seconds", {d, d});
    get(&in.recv_cpu_seconds_per_byte, "recv_cpu_seconds_per_byte", {d, d});
    {
      const py::gil_scoped_release release;
      model_ = std::make_unique<Model>(in);
    }
    engines_ = std::make_unique<EnginePool>(*model_);
  }

  py::tuple Evaluate(const py::object& placements_object, const py::object& group_of,
                     const py::object& cutoffs_object, int threads) {
    const Array<int32_t> placements = Placements(placements_object, group_of);
    const int64_t rows = placements.shape(0);
    const Array<double> cutoffs = CheckedArray<double>(cutoffs_object, "cutoff", {rows});
    if (threads < 1) throw std::invalid_argument("threads must be at least 1");
    const py::ssize_t d = model_->num_devices;
    py::array_t<double> step(rows), busy({rows, d}), seconds({rows, d});
    py::array_t<int64_t> peak({rows, d}), bytes({rows, d});
    py::array_t<bool> feasible(rows);
    const BatchResults results = {step.mutable_data(),    feasible.mutable_data(),
                                  peak.mutable_data(),    busy.mutable_data(),
                                  seconds.mutable_data(), bytes.mutable_data()};
    const int32_t* groups = Groups(group_of);
    bool finished;
    {
      const py::gil_scoped_release release;
      CheckPlacements(placements.data(), rows, placements.shape(1), model_->num_devices);
      const Slots slots(*model_, groups, static_cast<int32_t>(placements.shape(1)));
      finished = EvaluateBatch(*model_, engines_.get(), slots, placements.data(), rows,
                               cutoffs.data(), threads, results, SignalPoll());
    }
    if (!finished) throw py::error_already_set();
    return py::make_tuple(step, feasible, peak, busy, seconds, bytes);
  }

  py::tuple LowerBoundOf(const py::object& allowed, const py::object& colocation) {
    const int64_t n = model_->num_all_ops, d = model_->num_devices;
    Array<bool> mask;
    Array<int32_t> groups;
    if (!allowed.is_none()) mask = CheckedArray<bool>(allowed, "allowed", {n, d});
    if (!colocation.is_none()) groups = CheckedArray<int32_t>(colocation, "colocation", {n});
    const bool* mask_data = allowed.is_none() ? nullptr : mask.data();
    const int32_t* group_data = colocation.is_none() ? nullptr : groups.data();
    LowerBound bound;
    {
      const py::gil_scoped_release release;
      bound = ComputeLowerBound(*model_, mask_data, group_data);
    }
    return py::make_tuple(bound.critical_path_seconds, bound.transfer_seconds, bound.work_seconds,
                          bound.window_seconds, bound.colocation_seconds, bound.memory_problem);
  }

  // Evaluates candidates that differ from one placement in a few slots.
  py::tuple EvaluateMoves(const MoveBase& base, const py::object& move_ptr,
                          const py::object& move_slots, const py::object& move_devices,
                          const py::object& cutoffs_object, int threads) {
    const Array<double> cutoffs = CheckedArray<double>(cutoffs_object, "cutoff", {-1});
    const int64_t rows = cutoffs.shape(0);
    const Array<int64_t> ptr = CheckedArray<int64_t>(move_ptr, "move_ptr", {rows + 1});
    const Array<int32_t> slots = CheckedArray<int32_t>(move_slots, "move_slots", {-1});
    const int64_t count = slots.shape(0);
    const Array<int32_t> devices =
        CheckedArray<int32_t>(move_devices, "move_devices", {count});
    if (threads < 1) throw std::invalid_argument("threads must be at least 1");
    const py::ssize_t d = model_->num_devices;
    py::array_t<double> step(rows);
    py::array_t<int64_t> peak({rows, d});
    py::array_t<bool> feasible(rows);
    const MoveResults results = {step.mutable_data(), feasible.mutable_data(),
                                 peak.mutable_data()};
    bool finished;
    {
      const py::gil_scoped_release release;
      finished = placer::EvaluateMoves(*model_, engines_.get(), base, rows, ptr.data(),
                                       slots.data(), devices.data(), count, cutoffs.data(),
                                       threads, results, SignalPoll());
    }
    if (!finished) throw py::error_already_set();
    return py::make_tuple(step, feasible, peak);
  }

  std::unique_ptr<MoveBase> BuildBase(const py::object& placement, const py::object& group_of) {
    const Array<int32_t> row = Placements(placement, group_of);
    if (row.shape(0) != 1) throw std::invalid_argument("placement must be one row");
    const int32_t* groups = Groups(group_of);
    auto base = std::make_unique<MoveBase>();
    const py::gil_scoped_release release;
    CheckPlacements(row.data(), 1, row.shape(1), model_->num_devices);
    const Slots slots(*model_, groups, static_cast<int32_t>(row.shape(1)));
    std::unique_ptr<Engine> engine = engines_->Take();
    BuildMoveBase(*model_, engine.get(), slots, row.data(), base.get());
    engines_->Give(std::move(engine));
    return base;
  }

  py::dict Simulate(const py::object& placement, const py::object& group_of) {
    const Array<int32_t> row = Placements(placement, group_of);
    if (row.shape(0) != 1) throw std::invalid_argument("placement must be one row");
    const int32_t* groups = Groups(group_of);
    TraceLog log;
    Outcome outcome;
    {
      const py::gil_scoped_release release;
      CheckPlacements(row.data(), 1, row.shape(1), model_->num_devices);
      const Slots slots(*model_, groups, static_cast<int32_t>(row.shape(1)));
      std::unique_ptr<Engine> engine = engines_->Take();
      outcome = engine->Run(slots, row.data(), kNever, &log);
      engines_->Give(std::move(engine));
    }
    py::dict result;
    result["step_seconds"] = outcome.step_seconds;
    result["peak_bytes"] = Vector(outcome.peak_bytes);
    result["peak_seconds"] = Vector(outcome.peak_seconds);
    result["busy_seconds"] = Vector(outcome.busy_seconds);
    result["transfer_seconds"] = Vector(outcome.transfer_seconds);
    result["transfer_bytes"] = Vector(outcome.transfer_bytes);
    result["span_kind"] = Column(log.spans, &Span::kind);
    result["span_reason"] = Column(log.spans, &Span::reason);
    result["span_op"] = Column(log.spans, &Span::op);
    result["span_tensor"] = Column(log.spans, &Span::tensor);
    result["span_src"] = Column(log.spans, &Span::src);
    result["span_dst"] = Column(log.spans, &Span::dst);
    result["span_cause"] = Column(log.spans, &Span::cause);
    result["span_transfer"] = Column(log.spans, &Span::transfer);
    result["span_bytes"] = Column(log.spans, &Span::bytes);
    result["span_ready"] = Column(log.spans, &Span::ready);
    result["span_start"] = Column(log.spans, &Span::start);
    result["span_end"] = Column(log.spans, &Span::end);
    const py::ssize_t points = static_cast<py::ssize_t>(log.memory.size());
    py::array_t<int32_t> point_device(points);
    py::array_t<double> point_seconds(points);
    py::array_t<int64_t> point_bytes(points);
    for (py::ssize_t i = 0; i < points; ++i) {
      point_device.mutable_data()[i] = log.memory[i].device;
      point_seconds.mutable_data()[i] = log.memory[i].time;
      point_bytes.mutable_data()[i] = log.memory[i].bytes;
    }
    result["memory_device"] = point_device;
    result["memory_seconds"] = point_seconds;
    result["memory_bytes"] = point_bytes;
    const py::ssize_t buffers = static_cast<py::ssize_t>(log.buffers.size());
    py::array_t<int64_t> lives({buffers, py::ssize_t{7}});
    int64_t* life = lives.mutable_data();
    for (const BufferLife& b : log.buffers) {
      for (int64_t value : {int64_t{b.kind}, int64_t{b.device}, int64_t{b.op}, int64_t{b.tensor},
                            b.bytes, b.begin, b.end}) {
        *life++ = value;
      }
    }
    result["buffers"] = lives;
    return result;
  }

 private:
  template <typename T>
  static py::array_t<T> Vector(const std::vector<T>& values) {
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
  }

  const int32_t* Groups(const py::object& group_of) const {
    return group_of.is_none() ? nullptr : py::reinterpret_borrow<Array<int32_t>>(group_of).data();
  }

  // Checks the shapes of placements [B, N], or [B, G] with group_of [N] into G.
  Array<int32_t> Placements(const py::object& placements, const py::object& group_of) const {
    const int64_t n = model_->num_all_ops;
    Array<int32_t> rows =
        CheckedArray<int32_t>(placements, "placements", {-1, group_of.is_none() ? n : -1});
    if (rows.shape(1) > INT32_MAX) throw std::invalid_argument("placements is too wide");
    if (!group_of.is_none()) {
      const Array<int32_t> groups = CheckedArray<int32_t>(group_of, "group_of", {n});
      for (int64_t i = 0; i < n; ++i) {
        const int32_t group = groups.data()[i];
        if (group < 0 || group >= rows.shape(1)) {
          throw std::invalid_argument("group_of[" + std::to_string(i) + "] is " +
                                      std::to_string(group) + ": placements have " +
                                      std::to_string(rows.shape(1)) + " groups");
        }
      }
    }
    return rows;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<EnginePool> engines_;
};

}  // namespace
}  // namespace placer

PYBIND11_MODULE(_native, m) {
  m.doc() = "Native event-driven simulator; use placer.simulator.";
  py::class_<placer::MoveBase>(m, "MoveBase")
      .def_readonly("step_seconds", &placer::MoveBase::step_seconds)
      .def_property_readonly("peak_bytes", [](const placer::MoveBase& base) {
        return py::array_t<int64_t>(static_cast<py::ssize_t>(base.peak_bytes.size()),
                                    base.peak_bytes.data());
      });
  py::class_<placer::Simulator>(m, "Simulator")
      .def(py::init<const py::object&>())
      .def("evaluate", &placer::Simulator::Evaluate, py::arg("placements"), py::arg("group_of"),
           py::arg("cutoff"), py::arg("threads"))
      .def("lower_bound", &placer::Simulator::LowerBoundOf, py::arg("allowed"),
           py::arg("colocation"))
      .def("move_base", &placer::Simulator::BuildBase, py::arg("placement"), py::arg("group_of"))
      .def("evaluate_moves", &placer::Simulator::EvaluateMoves, py::arg("base"),
           py::arg("move_ptr"), py::arg("move_slots"), py::arg("move_devices"),
           py::arg("cutoff"), py::arg("threads"))
      .def("simulate", &placer::Simulator::Simulate, py::arg("placement"), py::arg("group_of"));
}
