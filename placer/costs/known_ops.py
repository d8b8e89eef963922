"""Which op types Grappler's cost estimator knows.

The sets follow the tables device_cost_impl_, elementwise_ops_ and persistent_ops_ of
tensorflow/core/grappler/costs/op_level_cost_estimator.cc.
"""

# ruff: noqa: SIM905
from __future__ import annotations

# Cost the minimum, a nanosecond: they pass on a buffer or tell something about its shape.
MINIMUM_OPS = frozenset(
    """
    Placeholder Identity IdentityN RefIdentity StopGradient PreventGradient Reshape _Recv _Send
    Switch Merge Enter Exit NextIteration BitCast Rank Shape ShapeN Size Const Variable VariableV2
    AutoReloadVariable VarHandleOp _VarHandlesOp ReadVariableOp _ReadVariablesOp
    """.split()
)
FREE_OPS = frozenset(["NoOp", "GuaranteeConst"])
ELEMENTWISE_OPS = frozenset(
    """
    Acos All ArgMax Asin Atan Atan2 Cast Ceil Cos Dequantize Erf Erfc Exp Expm1 Floor Inv InvGrad
    Lgamma Log Log1p Max Min Neg Prod QuantizeAndDequantizeV2 QuantizeAndDequantizeV4
    QuantizedSigmoid QuantizeV2 Reciprocal Relu Relu6 Rint Round Rsqrt Sigmoid Sign Sin Sqrt Square
    Sum Tan Tanh TopKV2 Add AddV2 ApproximateEqual BiasAdd QuantizedBiasAdd Div Equal FloorDiv
    FloorMod Greater GreaterEqual Less LessEqual LogicalAnd LogicalNot LogicalOr Maximum Minimum
    Mod Mul NotEqual QuantizedAdd QuantizedMul RealDiv ReluGrad Select SelectV2 SquaredDifference
    Sub TruncateDiv TruncateMod Where
    """.split()
)
MODELLED_OPS = frozenset(
    """
    Conv2D Conv2DBackpropFilter Conv2DBackpropInput FusedConv2DBiasActivation DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput MatMul SparseMatMul
    SparseTensorDenseMatMul BatchMatMul BatchMatMulV2 QuantizedMatMul QuantizedMatMulV2 XlaEinsum
    Einsum Gather GatherNd GatherV2 ScatterAdd ScatterDiv ScatterMax ScatterMin ScatterMul
    ScatterSub ScatterUpdate Slice StridedSlice ConcatV2 DataFormatVecPermute DepthToSpace
    ExpandDims Fill OneHot Pack Range SpaceToDepth Split Squeeze Transpose Tile Unpack MaxPool
    MaxPoolGrad AvgPool AvgPoolGrad FusedBatchNorm FusedBatchNormGrad Softmax ResizeBilinear
    CropAndResize AssignVariableOp AssignAddVariableOp AssignSubVariableOp AddN
    """.split()
)
KNOWN_OPS = MINIMUM_OPS | FREE_OPS | ELEMENTWISE_OPS | MODELLED_OPS
