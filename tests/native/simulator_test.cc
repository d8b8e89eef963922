// Drives the simulator core without Python, for runs under sanitizers: random graphs through every
// mode, results of one mode checked against another's, and arrays that must be refused.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "batch.h"
#include "bounds.h"
#include "engine.h"
#include "model.h"
#include "moves.h"

namespace {

using placer::Inputs;
using Random = std::mt19937;

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                            \
    }                                                                          \
  } while (false)

int Draw(Random& random, int low, int high) {  // both included
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

// Owns the arrays of one random graph; edges go from lower to higher op numbers.
struct Graph {
  std::vector<char> executed, inline_op;
  std::vector<double> op_seconds, launch, latency, per_byte, contention, cpu[4];
  std::vector<int64_t> persistent, temporary, out_ptr, bytes, local, in_ptr, limit;
  std::vector<int32_t> alias, in_tensor, control_src, control_dst, device_class, concurrency,
      executor_threads, channels;
  int64_t classes = 1;

  Graph(Random& random, int ops, int devices) {
    classes = Draw(random, 1, devices);
    auto seconds = [&] { return 0.25 * Draw(random, 0, 5); };
    out_ptr.push_back(0);
    in_ptr.push_back(0);
    std::vector<int> inputs;
    for (int i = 0; i < ops; ++i) {
      executed.push_back(Draw(random, 0, 9) > 0);
      inline_op.push_back(Draw(random, 0, 1));
      persistent.push_back(Draw(random, 0, 3) == 0 ? Draw(random, 0, 50) : 0);
      const int64_t before = static_cast<int64_t>(bytes.size());
      const int fan_in = before > 0 ? Draw(random, 0, 3) : 0;
      for (int e = 0; e < fan_in; ++e) {
        in_tensor.push_back(Draw(random, 0, static_cast<int>(before) - 1));
      }
      in_ptr.push_back(static_cast<int64_t>(in_tensor.size()));
      for (int o = Draw(random, 0, 2); o > 0; --o) {
        bytes.push_back(Draw(random, 0, 20));
        local.push_back(Draw(random, 0, 20));
        alias.push_back(fan_in > 0 && Draw(random, 0, 2) == 0 ? Draw(random, 0, fan_in - 1) : -1);
      }
      out_ptr.push_back(static_cast<int64_t>(bytes.size()));
      if (i > 0 && Draw(random, 0, 2) == 0) {
        control_src.push_back(Draw(random, 0, i - 1));
        control_dst.push_back(i);
      }
    }
    for (int64_t j = 0; j < classes * ops; ++j) {
      op_seconds.push_back(seconds());
      temporary.push_back(Draw(random, 0, 10));
    }
    const bool with_cpu = Draw(random, 0, 1) == 1;
    const bool with_contention = Draw(random, 0, 1) == 1;
    for (int d = 0; d < devices; ++d) {
      launch.push_back(seconds());
      device_class.push_back(Draw(random, 0, static_cast<int>(classes) - 1));
      limit.push_back(Draw(random, 0, 300));
      concurrency.push_back(Draw(random, 0, 2) == 0 ? Draw(random, 2, 3) : 1);
      executor_threads.push_back(concurrency.back() == 1 ? Draw(random, 0, 3) : 0);
      for (int r = 0; r < devices; ++r) {
        latency.push_back(seconds());
        per_byte.push_back(seconds() / 8);
        contention.push_back(with_contention ? seconds() : 0);
        channels.push_back(Draw(random, -1, 5));
        channels.push_back(Draw(random, -1, 5));
        for (auto& cost : cpu) cost.push_back(with_cpu ? seconds() / 8 : 0);
      }
    }
  }

  Inputs View() const {
    Inputs in;
    in.num_ops = static_cast<int64_t>(executed.size());
    in.num_tensors = static_cast<int64_t>(bytes.size());
    in.num_edges = static_cast<int64_t>(in_tensor.size());
    in.num_controls = static_cast<int64_t>(control_src.size());
    in.num_devices = static_cast<int64_t>(launch.size());
    in.num_classes = classes;
    in.executed = reinterpret_cast<const bool*>(executed.data());
    in.op_seconds = op_seconds.data();
    in.launch_seconds = launch.data();
    in.persistent_bytes = persistent.data();
    in.temporary_bytes = temporary.data();
    in.out_ptr = out_ptr.data();
    in.tensor_bytes = bytes.data();
    in.tensor_local_bytes = local.data();
    in.tensor_alias = alias.data();
    in.in_ptr = in_ptr.data();
    in.in_tensor = in_tensor.data();
    in.control_src = control_src.data();
    in.control_dst = control_dst.data();
    in.device_class = device_class.data();
    in.memory_limit = limit.data();
    in.concurrency = concurrency.data();
    in.executor_threads = executor_threads.data();
    in.contention = contention.data();
    in.inline_op = reinterpret_cast<const bool*>(inline_op.data());
    in.latency = latency.data();
    in.seconds_per_byte = per_byte.data();
    in.channels = channels.data();
    in.send_cpu_seconds = cpu[0].data();
    in.send_cpu_seconds_per_byte = cpu[1].data();
    in.recv_cpu_seconds = cpu[2].data();
    in.recv_cpu_seconds_per_byte = cpu[3].data();
    return in;
  }
};

struct Results {
  std::vector<double> step, busy, seconds;
  std::vector<int64_t> peak, bytes;
  std::vector<char> feasible;

  Results(size_t rows, size_t devices)
      : step(rows), busy(rows * devices), seconds(rows * devices), peak(rows * devices),
        bytes(rows * devices), feasible(rows) {}
  placer::BatchResults View() {
    return {step.data(), reinterpret_cast<bool*>(feasible.data()), peak.data(), busy.data(),
            seconds.data(), bytes.data()};
  }
};

void RunEverything(uint32_t seed) {
  Random random(seed);
  const int ops = Draw(random, 0, 60), devices = Draw(random, 1, seed % 8 == 0 ? 60 : 5);
  const Graph graph(random, ops, devices);
  const placer::Model model(graph.View());
  placer::EnginePool engines(model);
  const placer::Slots slots(model, nullptr, ops);
  const size_t rows = 8;
  std::vector<int32_t> placements(rows * ops);
  for (int32_t& device : placements) device = Draw(random, 0, devices - 1);
  placer::CheckPlacements(placements.data(), rows, ops, devices);
  const auto never = [] { return false; };
  std::vector<double> cutoffs(rows, placer::kNever);

  Results full(rows, devices), threaded(rows, devices), cut(rows, devices);
  CHECK(placer::EvaluateBatch(model, &engines, slots, placements.data(), rows, cutoffs.data(), 1,
                              full.View(), never));
  CHECK(placer::EvaluateBatch(model, &engines, slots, placements.data(), rows, cutoffs.data(), 4,
                              threaded.View(), never));
  CHECK(full.step == threaded.step && full.peak == threaded.peak && full.busy == threaded.busy &&
        full.seconds == threaded.seconds && full.bytes == threaded.bytes &&
        full.feasible == threaded.feasible);

  cutoffs.assign(rows, full.step[0]);
  CHECK(placer::EvaluateBatch(model, &engines, slots, placements.data(), rows, cutoffs.data(), 2,
                              cut.View(), never));
  const placer::LowerBound bound = placer::ComputeLowerBound(model, nullptr, nullptr);
  for (size_t b = 0; b < rows; ++b) {
    CHECK(cut.step[b] == (full.step[b] <= full.step[0] ? full.step[b] : placer::kNever));
    CHECK(bound.critical_path_seconds <= full.step[b] && bound.work_seconds <= full.step[b] &&
          bound.window_seconds <= full.step[b] && bound.colocation_seconds <= full.step[b]);
    std::unique_ptr<placer::Engine> engine = engines.Take();
    placer::TraceLog log;
    const placer::Outcome& outcome =
        engine->Run(slots, placements.data() + b * ops, placer::kNever, &log);
    CHECK(outcome.step_seconds == full.step[b]);
    for (int d = 0; d < devices; ++d) CHECK(outcome.peak_bytes[d] == full.peak[b * devices + d]);
    for (const placer::Span& span : log.spans) {
      CHECK(span.cause >= 0 ? log.spans[span.cause].end == span.start : span.start == 0);
    }
    engines.Give(std::move(engine));
  }

  // Every other row as moves from the first.
  placer::MoveBase base;
  {
    std::unique_ptr<placer::Engine> engine = engines.Take();
    placer::BuildMoveBase(model, engine.get(), slots, placements.data(), &base);
    engines.Give(std::move(engine));
  }
  std::vector<int64_t> ptr(1, 0);
  std::vector<int32_t> which, where, moved;
  for (size_t b = 0; b < rows; ++b) {
    moved.insert(moved.end(), placements.begin(), placements.begin() + ops);
    for (int i = 0; i < ops; ++i) {
      if (Draw(random, 0, ops) > 2) continue;
      which.push_back(i);
      where.push_back(Draw(random, 0, devices - 1));
      moved[b * ops + i] = where.back();
    }
    ptr.push_back(static_cast<int64_t>(which.size()));
  }
  cutoffs.assign(rows, placer::kNever);
  Results expected(rows, devices), actual(rows, devices);
  CHECK(placer::EvaluateBatch(model, &engines, slots, moved.data(), rows, cutoffs.data(), 2,
                              expected.View(), never));
  CHECK(placer::EvaluateMoves(
      model, &engines, base, rows, ptr.data(), which.data(), where.data(),
      static_cast<int64_t>(which.size()), cutoffs.data(), 2,
      {actual.step.data(), reinterpret_cast<bool*>(actual.feasible.data()), actual.peak.data()},
      never));
  CHECK(expected.step == actual.step && expected.peak == actual.peak &&
        expected.feasible == actual.feasible);
}

template <typename T>
void Spoil(Random& random, std::vector<T>* values, const std::vector<T>& bad) {
  if (values->empty()) return;
  (*values)[random() % values->size()] = bad[random() % bad.size()];
}

// Damaged arrays are refused with std::invalid_argument, or make a model that runs.
bool Damaged(uint32_t seed) {
  Random random(seed);
  Graph graph(random, Draw(random, 1, 12), Draw(random, 1, 4));
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers = {-1, -inf, inf, std::numeric_limits<double>::quiet_NaN()};
  const std::vector<int64_t> sizes = {-1, INT64_MIN, INT64_MAX, 3};
  const std::vector<int32_t> indices = {-2, INT32_MIN, INT32_MAX, 5, 0};
  switch (Draw(random, 0, 13)) {
    case 0: Spoil(random, &graph.op_seconds, numbers); break;
    case 1: Spoil(random, &graph.launch, numbers); break;
    case 2: Spoil(random, &graph.latency, numbers); break;
    case 3: Spoil(random, &graph.cpu[Draw(random, 0, 3)], numbers); break;
    case 4: Spoil(random, &graph.persistent, sizes); break;
    case 5: Spoil(random, &graph.bytes, sizes); break;
    case 6: Spoil(random, &graph.out_ptr, sizes); break;
    case 7: Spoil(random, &graph.in_ptr, sizes); break;
    case 8: Spoil(random, &graph.in_tensor, indices); break;
    case 9: Spoil(random, &graph.control_dst, indices); break;
    case 10: Spoil(random, &graph.alias, indices); break;
    case 11: Spoil(random, &graph.executor_threads, indices); break;
    case 12: Spoil(random, &graph.contention, numbers); break;
    default: Spoil(random, &graph.concurrency, indices); break;
  }
  try {
    const placer::Model model(graph.View());
    const placer::Slots slots(model, nullptr, model.num_all_ops);
    const std::vector<int32_t> row(model.num_all_ops, 0);
    placer::Engine engine(model);
    CHECK(engine.Run(slots, row.data(), placer::kNever).step_seconds >= 0);
    return false;
  } catch (const std::invalid_argument& error) {
    CHECK(std::string(error.what()).size() > 10);
    return true;
  }
}

void StopsAndRethrows() {
  int polls = 0;
  CHECK(!placer::ParallelFor(1000000, 3, [](int64_t) {}, [&polls] { return ++polls > 3; }));
  bool caught = false;
  try {
    placer::ParallelFor(
        100, 3, [](int64_t item) { if (item == 50) throw std::runtime_error("item 50"); },
        nullptr);
  } catch (const std::runtime_error&) {
    caught = true;
  }
  CHECK(caught);
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t count = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 200;
  int refused = 0;
  for (uint32_t seed = 0; seed < count; ++seed) {
    RunEverything(seed);
    refused += Damaged(seed) ? 1 : 0;
  }
  StopsAndRethrows();
  std::printf("%u graphs, %d damaged ones refused\n", count, refused);
  return refused > 0 && refused < static_cast<int>(count) ? 0 : 1;
}
